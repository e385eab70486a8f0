"""Going back: where a turn can be resumed or forked from, what may be changed of it then, and taking turns
back."""

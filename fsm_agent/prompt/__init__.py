"""The system prompt, in layers.

>>> from fsm_agent.prompt import Sources, prompt_of
"""

from fsm_agent.conversation.messages import StoredPrompt
from fsm_agent.prompt.book import Recalled, Sources, prompt_of

__all__ = ["Recalled", "Sources", "StoredPrompt", "prompt_of"]

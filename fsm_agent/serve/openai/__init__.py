"""The wires of OpenAI: ``/v1/responses``, ``/v1/chat/completions``, and ``/v1/models``."""

"""The wires of OpenAI, for their SDKs and all programs that speak with them: ``/v1/responses``,
``/v1/chat/completions``, and ``/v1/models``."""

"""Models as a service over HTTP: OpenAI's interface for language models, the Open Inference Protocol for all others."""

"""From a request's body to text: prompt, sampling parameters, output stream, usage."""

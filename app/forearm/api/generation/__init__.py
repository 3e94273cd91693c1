"""Text generation for every API: prompt, sampling parameters, output stream, usage."""

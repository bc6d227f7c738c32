"""The native CPU pass: `kernel.c`, how it is compiled (`compile`) and called (`binding`). Optional."""

"""The papers' methods in float64 with numpy alone, sharing no code with the library, to compare it with."""

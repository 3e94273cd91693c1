"""Constraints on the next token of an output: grammars, thinking budgets, repetition."""

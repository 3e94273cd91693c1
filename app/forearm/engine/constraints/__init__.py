"""What an output may go on with: grammars, thinking budgets, repetition."""

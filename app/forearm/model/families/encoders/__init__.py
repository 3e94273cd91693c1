"""Families of encoders, whose models embed, score and classify."""

"""Scripts and configs of other trainers as settings here."""

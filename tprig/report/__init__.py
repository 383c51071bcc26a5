"""What people read: tables for the terminal, Markdown for a pull request."""

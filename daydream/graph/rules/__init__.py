"""Rules of dependency, one cause a file. Each has a test that leaves it out and sees replay get worse."""

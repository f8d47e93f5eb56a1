"""A user's own `sitecustomize`: it is run although ours stands in front of it."""

import builtins

builtins.HAS_OWN_SITECUSTOMIZE = True

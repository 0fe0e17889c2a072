"""NSD against plain decoding: the tests of this folder's modules, collected in one file because they share two servers and
test processes take whole files."""

from answer_contents import *  # noqa: F401,F403
from control_endpoints import *  # noqa: F401,F403
from few_kits import *  # noqa: F401,F403
from parsed_answers import *  # noqa: F401,F403
from structured_output import *  # noqa: F401,F403

import sys

from rpn import evaluate

print(sys.argv[1], "=", evaluate(sys.argv[1]))

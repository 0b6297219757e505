import unittest

from rpn import evaluate


class Bad(unittest.TestCase):
    def test_sum(self):
        self.assertEqual(evaluate("1 2 +"), 4)

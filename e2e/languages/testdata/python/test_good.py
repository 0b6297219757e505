import unittest

from rpn import evaluate


class Good(unittest.TestCase):
    def test_sum(self):
        self.assertEqual(evaluate("1 2 +"), 3)

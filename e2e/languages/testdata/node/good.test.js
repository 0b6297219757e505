const assert = require('node:assert/strict');
const { test } = require('node:test');
const { evaluate } = require('./rpn');

test('sum', () => assert.equal(evaluate('1 2 +'), 3));

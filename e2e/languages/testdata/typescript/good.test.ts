import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Stack } from './rpn';

test('sum', (): void => assert.equal(new Stack().evaluate('1 2 +') as number, 3));

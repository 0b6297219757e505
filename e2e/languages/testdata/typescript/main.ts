import process from 'node:process';
import { Stack, type Evaluator } from './rpn';

const evaluator: Evaluator = new Stack();
const text: string = process.argv[2]!;
console.log(text, '=', evaluator.evaluate(text));

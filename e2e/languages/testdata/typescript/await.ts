import { Stack } from './rpn';

const answer: number = await Promise.resolve(new Stack().evaluate('6 7 *'));
console.log('awaited', answer);

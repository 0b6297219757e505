// Package rpn is reverse Polish notation.
package rpn

import (
	"fmt"
	"strconv"
	"strings"
)

// Evaluate returns the one value that the words leave.
func Evaluate(text string) (int, error) {
	var stack []int
	for _, word := range strings.Fields(text) {
		apply, ok := operators[word]
		if !ok {
			n, err := strconv.Atoi(word)
			if err != nil {
				return 0, err
			}
			stack = append(stack, n)
			continue
		}
		if len(stack) < 2 {
			return 0, fmt.Errorf("too few values for %s", word)
		}
		top := len(stack) - 1
		stack = append(stack[:top-1], apply(stack[top-1], stack[top]))
	}
	if len(stack) != 1 {
		return 0, fmt.Errorf("%d values are left of %q", len(stack), text)
	}
	return stack[0], nil
}

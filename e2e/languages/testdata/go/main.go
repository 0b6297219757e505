// Command calc evaluates its argument.
package main

import (
	"calc/rpn"
	"fmt"
	"os"
)

func main() {
	answer, err := rpn.Evaluate(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(3)
	}
	fmt.Println(os.Args[1], "=", answer)
}

// Command program is what the tests read the function table of: recursion, calls inlined into each other, a generic
// function, a method and a closure.
package main

import (
	"fmt"
	"os"
	"strings"
)

type tree struct{ left, right *tree }

func (t *tree) depth() int {
	if t == nil {
		return 0
	}
	return 1 + larger(t.left.depth(), t.right.depth())
}

func larger[T int | float64](a, b T) T {
	if a > b {
		return a
	}
	return b
}

func twice(s string) string { return again(s) + s }
func again(s string) string { return strings.ToUpper(s) }
func grow(n int, t *tree) *tree {
	if n == 0 {
		return t
	}
	return &tree{left: grow(n-1, t)}
}

func main() {
	show := func(s string) { fmt.Println(twice(s), len(os.Args)) }
	show(fmt.Sprint(grow(10, nil).depth()))
}

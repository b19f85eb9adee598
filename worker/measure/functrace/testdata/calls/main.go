// The program calls functions in ways that tests trace: as many times as its arguments say, with stacks that grow. It
// waits for a line of input before it begins and before it ends.
package main

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
)

//go:noinline
func call_inlined_func_chain() {
	inline_me_1()
}

func inline_me_1() {
	inline_me_2()
}

func inline_me_2() {
	inline_me_3()
}

func inline_me_3() {
	not_inlined()
}

var calls, sum int

//go:noinline
func not_inlined() {
	calls++
}

// grow needs more stack with each call of itself.
//
//go:noinline
func grow(n int, text string) int {
	var room [64]int
	room[n%len(room)] = len(text)
	calls++
	if n > 0 {
		return grow(n-1, text) + room[(n+1)%len(room)]
	}
	return room[0]
}

func main() {
	input := bufio.NewReader(os.Stdin)
	fmt.Println("ready")
	_, _ = input.ReadString('\n')
	rounds, _ := strconv.Atoi(os.Args[1])
	depth, _ := strconv.Atoi(os.Args[2])
	for i := 0; i < rounds; i++ {
		call_inlined_func_chain()
		done := make(chan int)
		go func() { done <- grow(depth, "some text") }()
		sum += <-done
	}
	fmt.Println("done")
	_, _ = input.ReadString('\n')
	fmt.Println(sum)
}

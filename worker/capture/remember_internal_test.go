package capture

import (
	"encoding/binary"
	"testing"

	"pg_stat_backtrace/ptrace/snapshot"
	"pg_stat_backtrace/worker/pg/levels"
)

// TestRemember checks that the value of a variable is kept only if all the memory that it points to was copied.
func TestRemember(t *testing.T) {
	const at, follow = 0x1000, 100
	for name, test := range map[string]struct {
		pointer uint64
		copied  int // copied bytes of the variable's target
		follow  int
		want    uint64
	}{
		"all":        {0x2000, follow, follow, 0x2000},
		"less":       {0x2000, follow - 1, follow, 0},
		"nothing":    {0x2000, 0, follow, 0},
		"null":       {0, follow, follow, 0},
		"no pointer": {0x2000, follow, 0, 0},
	} {
		word := binary.NativeEndian.AppendUint64(nil, test.pointer)
		memory := frozen(&snapshot.Stack{Start: at, Data: word},
			[]snapshot.Stack{{Start: 0x2000, Data: make([]byte, test.copied)}})
		p := serverProcess{variables: []snapshot.Variable{{Address: at, Follow: test.follow}}, last: new(pointers)}
		for range 2 { // when it is expected, too
			p.remember(memory)
			if got := p.last[0].Load(); got != test.want {
				t.Errorf("%s: %#x, not %#x", name, got, test.want)
			}
			p.variables[0].Expected = test.pointer
		}
	}
	p := serverProcess{variables: make([]snapshot.Variable, 2*len(pointers{})), last: new(pointers)}
	p.remember(levels.Memory(func(uint64, []byte) int { return 0 })) // more variables than are remembered
}

package stackoracle

import (
	"slices"
	"strings"
	"testing"
)

// shape is how two stacks differ behind their common frames.
type shape int

const (
	theyEnd    shape = iota // all frames of the reference are ours, and ours continue
	weEnd                   // all our frames are the reference's, and the reference's continue
	theyInvent              // both continue, with other frames
)

// difference is a known reason why our stack differs from a reference's, and the side that is right.
type difference struct {
	subject   string // exact name, or a prefix with a star
	reference string
	shape     shape
	right     string // "ours", the reference's name, or "neither"
	reason    string
	// sometimes is set if the difference depends on the moment of the stop.
	sometimes bool
	// caller, if not empty, is the function of our frame at the level of the difference.
	caller string
}

// differences are all known differences, with elfutils 0.188 and gdb 13.1.
var differences = []difference{
	{"no CFI, frame pointer", gdb, theyInvent, "ours",
		"gdb analyses the prologue, whose instructions the compiler has mixed with others, and misses the frame pointer; " +
			"the chain of frame pointers, which eu-stack follows too, has every function of the source", false, ""},
	{"assembly without CFI, frameless", gdb, theyInvent, "ours",
		"nothing describes the function, and it has no frame pointer; gdb takes a word of its locals for the return " +
			"address; we follow its instructions to its return, and have every function of the source", false, ""},
	{"assembly without CFI, frameless", euStack, theyEnd, "ours", "as above; eu-stack ends", false, ""},
	{"between two functions", euStack, theyEnd, "ours",
		"no function has the instructions that lead from one to the next, as those have that align memcpy in the GNU C " +
			"library; eu-stack ends; the processor goes on in the next function, whose call frame information counts", false, ""},
	{"jump through NULL", euStack, theyEnd, "ours",
		"eu-stack finds no module at address 0 and ends; the return address lies where the call left it", false, ""},
	{"generated code", gdb, theyInvent, "ours",
		"gdb takes a word of the generated function's locals for its return address; it has a frame pointer, which " +
			"eu-stack follows too", false, ""},
	{"coroutine", gdb, weEnd, "ours",
		"the C library's __start_context has no CFI on purpose: it is where the stack ends; gdb invents callers", false, ""},
	{"musl*", gdb, theyInvent, "ours",
		"the system's musl is built without CFI and without frame pointers: gdb takes words of the stack for callers; we " +
			"follow the instructions of its functions to their returns, and have every function of the source", false, ""},
	{"musl*", euStack, theyEnd, "ours", "as above; eu-stack ends", true, ""},
	{"node", gdb, theyInvent, "ours",
		"V8's built-in functions have no CFI, but frame pointers; gdb guesses callers that lie in no code; eu-stack " +
			"follows the frame pointers as we do", false, ""},
	{"compiled query, unknown to gdb", gdb, theyInvent, "ours",
		"gdb does not know the code that LLVM generated for a query and takes words of the frame for callers; we read " +
			"LLVM's call frame information from the process's memory", true, ""},
	{"compiled query, unknown to gdb", gdb, theyEnd, "ours", "as above, where gdb finds no such word", true, ""},
	{"compiled query*", euStack, theyInvent, "ours",
		"eu-stack knows no JIT interface and follows the frame pointer out of the code that LLVM generated, which leaves " +
			"that register alone: it misses the caller", true, ""},
	{"compiled query*", euStack, theyEnd, "ours",
		"as above, where the register holds no frame pointer: eu-stack ends", true, ""},
	{"backend", euStack, theyInvent, "ours", "as above: its queries are compiled too", true, ""},
	{"backend", euStack, theyEnd, "ours", "as above", true, ""},
	{"parallel worker", euStack, theyInvent, "ours", "as above: its queries are compiled too", true, ""},
	{"parallel worker", euStack, theyEnd, "ours", "as above", true, ""},
	{"*", gdb, theyInvent, "ours",
		"the process ends: the function that runs a library's destructors has no CFI; gdb takes a word of the stack for " +
			"its caller, and continues with our frames; eu-stack has our frames only", true, "_dl_call_fini"},
	{"*", gdb, theyInvent, "ours", "as above, with an older C library", true, "_dl_fini"},
	{"*", euStack, theyEnd, "ours", "as above, where eu-stack ends, because the library has no debugging information", true, "_dl_call_fini"},
	{"*", euStack, theyEnd, "ours", "as above", true, "_dl_fini"},
}

// explained is the entry for a difference that was found between our stack and a reference's.
func explained(subject, reference string, ours, theirs *stack, level int) (difference, bool) {
	found := theyInvent
	switch level {
	case len(theirs.pcs):
		found = theyEnd
	case len(ours.pcs):
		found = weEnd
	}
	for _, d := range differences {
		prefix, star := strings.CutSuffix(d.subject, "*")
		named := d.subject == subject || star && strings.HasPrefix(subject, prefix)
		if d.caller != "" {
			named = named && level < len(ours.names) && equal(ours.names[level:level+1], []string{d.caller})
		}
		if named && d.reference == reference && d.shape == found {
			return d, true
		}
	}
	return difference{}, false
}

// expected reports whether every comparison of a subject with a reference should find a difference.
func expected(subject, reference string) bool {
	return slices.ContainsFunc(differences, func(d difference) bool {
		return d.subject == subject && d.reference == reference && !d.sometimes
	})
}

// TestExplained has the stacks of a process that was stopped in a destructor of a library.
func TestExplained(t *testing.T) {
	t.Parallel()
	stackOf := func(names ...string) *stack {
		s := new(stack)
		for _, name := range names {
			s.add(uint64(len(name)), name)
		}
		return s
	}
	ours := stackOf("libpthread.so.0", "_dl_call_fini", "_dl_fini", "exit")
	theirs := stackOf("libpthread.so.0", "??", "_dl_call_fini", "_dl_fini", "exit")
	if d, known := explained("walreceiver", gdb, ours, theirs, differ(ours, theirs)); !known || d.right != "ours" {
		t.Errorf("a destructor: %v, %t", d, known)
	}
	other := stackOf("libpthread.so.0", "WalReceiverMain", "_dl_fini", "exit")
	if d, known := explained("walreceiver", gdb, other, theirs, differ(other, theirs)); known {
		t.Errorf("another function is explained by %s", d.reason)
	}
	if d, known := explained("walreceiver", euStack, ours, theirs, differ(ours, theirs)); known {
		t.Errorf("eu-stack's difference is explained by %s", d.reason)
	}
}

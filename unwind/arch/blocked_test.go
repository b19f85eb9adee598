package arch

import "testing"

func TestBlocked(t *testing.T) {
	t.Parallel()
	args := [6]uint64{1, 2, 3, 4, 5, 6}
	regs := AMD64.Blocked(0x400000, 0x7ff000, true, args)
	for reg, want := range map[int]uint64{
		amd64RIP: 0x400000, amd64RSP: 0x7ff000,
		amd64RDI: 1, amd64RSI: 2, amd64RDX: 3, amd64R10: 4, amd64R8: 5, amd64R9: 6,
	} {
		if got, ok := regs.Get(reg); !ok || got != want {
			t.Errorf("%s: %#x, %v", AMD64.RegisterName(reg), got, ok)
		}
	}
	regs = AMD64.Blocked(0x400000, 0x7ff000, false, args)
	for _, a := range supported() {
		other := a.Blocked(0x400000, 0x7ff000, true, args)
		if _, known := other.Get(a.FP); known {
			t.Errorf("%s: the frame pointer is known", a.Name)
		}
	}
	if _, known := regs.Get(amd64RDI); known {
		t.Error("an argument of no system call")
	}
}

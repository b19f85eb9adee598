package stackoracle

import (
	"encoding/binary"
	"fmt"
	"os"
	"strings"
	"testing"
)

// code reads a process's memory. The instructions before a return address show whether it is one.
type code struct{ file *os.File }

func openCode(t *testing.T, pid int) code {
	t.Helper()
	file, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	return code{file}
}

const longestCall = 8 // bytes, a prefix included

// before returns the bytes before an address; fewer at the start of a mapping.
func (c code) before(address uint64) []byte {
	for n := longestCall; n > 1; n-- {
		bytes := make([]byte, n)
		if _, err := c.file.ReadAt(bytes, int64(address)-int64(n)); err == nil {
			return bytes
		}
	}
	return nil
}

// followsCall reports whether a call instruction ends at address. For a direct call, to is the called function.
func (c code) followsCall(address uint64) (to uint64, ok bool) {
	bytes := c.before(address)
	n := len(bytes)
	if n >= 5 && bytes[n-5] == 0xe8 { // call rel32
		relative := int32(binary.LittleEndian.Uint32(bytes[n-4:]))
		return address + uint64(int64(relative)), true
	}
	for length := 2; length <= min(7, n); length++ { // call r/m64: ff /2, with SIB byte and displacement
		if at := n - length; bytes[at] == 0xff && bytes[at+1]>>3&7 == 2 && indirectLength(bytes[at+1:]) == length {
			return 0, true
		}
	}
	return 0, false
}

// indirectLength is the length of `ff /2` with the given bytes behind the ff.
func indirectLength(rest []byte) int {
	length := 2
	mode, low := rest[0]>>6, rest[0]&7
	if mode == 3 {
		return length
	}
	if low == 4 {
		length++
		if len(rest) > 1 && mode == 0 && rest[1]&7 == 5 {
			length += 4
		}
	}
	switch {
	case mode == 1:
		length++
	case mode == 2, mode == 0 && low == 5:
		length += 4
	}
	return length
}

// region is the mapping of a process that contains an address.
func region(pid int, address uint64) string {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(data)) {
		var start, end, offset, inode uint64
		var permissions, device, path string
		n, _ := fmt.Sscanf(line, "%x-%x %s %x %s %d %s", &start, &end, &permissions, &offset, &device, &inode, &path)
		if n >= 6 && start <= address && address < end {
			if path == "" {
				path = fmt.Sprintf("anonymous %#x", start)
			}
			return path
		}
	}
	return ""
}

// callsFit checks our stacks without a reference. Every return address must follow a call. If a frame runs in
// generated code, and the direct call of the frame below leads elsewhere, a frame is missing between the two. This
// finds errors that a reference with the same weakness cannot find.
func callsFit(t *testing.T, s subject, ours stacks) {
	t.Helper()
	c := openCode(t, s.pid)
	for tid, one := range ours {
		for i := 1; i < len(one.pcs); i++ {
			if one.exact(i) {
				continue
			}
			to, ok := c.followsCall(one.pcs[i])
			if !ok && i == len(one.pcs)-1 {
				continue // where a stack starts nothing needs to have called
			}
			if !ok {
				t.Errorf("%s: thread %d: frame %d is no return address: no call before it\n%s", s.name, tid, i,
					dump(stacks{tid: one}))
				continue
			}
			if to == 0 || one.pcs[i-1] == 0 {
				continue
			}
			callee, above := region(s.pid, to), region(s.pid, one.pcs[i-1])
			// the function that was called may have ended with a jump to one of another library: no frame is missing then
			if callee == above || !strings.HasPrefix(above, "anonymous") {
				continue
			}
			t.Errorf("%s: thread %d: frame %d calls %#x in %s, but the frame above it runs in %s\n%s", s.name, tid,
				i, to, callee, above, dump(stacks{tid: one}))
		}
	}
}

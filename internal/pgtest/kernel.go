package pgtest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// KernelObject is a program or link of BPF in the kernel.
type KernelObject struct {
	// Link is set for a link, which attaches a program.
	Link bool
	id   uint32
}

// String returns the kind and the id.
func (o KernelObject) String() string {
	if o.Link {
		return fmt.Sprint("link ", o.id)
	}
	return fmt.Sprint("program ", o.id)
}

// KernelObjects returns the programs and links of which a process has descriptors.
func KernelObjects(t *testing.T, pid int) (list []KernelObject) {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, _ := os.ReadFile(file) // it may be closed
		for line := range strings.Lines(string(text)) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
			if name != "prog_id" && name != "link_id" {
				continue
			}
			id, err := strconv.ParseUint(strings.TrimSpace(value), 10, 32)
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, KernelObject{name == "link_id", uint32(id)})
		}
	}
	return list
}

// HasLink reports whether there is a link among the objects.
func HasLink(list []KernelObject) bool {
	return slices.ContainsFunc(list, func(o KernelObject) bool { return o.Link })
}

// Exists asks the kernel.
func (o KernelObject) Exists(t *testing.T) bool {
	t.Helper()
	const programByID, linkByID = 13, 30
	command := programByID
	if o.Link {
		command = linkByID
	}
	attr := [4]uint32{o.id}
	fd, _, errno := unix.Syscall(unix.SYS_BPF, uintptr(command), uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	switch errno {
	case 0:
		_ = unix.Close(int(fd))
		return true
	case unix.ENOENT:
		return false
	}
	t.Fatal(o, errno)
	return false
}

// Untouched expects that no thread of a server process is stopped or traced. Processes that have ended are left out.
func (s *Server) Untouched(t *testing.T) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/task/[0-9]*/status")
	if err != nil {
		t.Fatal(err)
	}
	postmaster := strconv.Itoa(s.PostmasterPID())
	for _, file := range files {
		text, _ := os.ReadFile(file)
		fields := map[string]string{}
		for line := range strings.Lines(string(text)) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
			fields[name] = strings.TrimSpace(value)
		}
		if fields["PPid"] != postmaster && fields["Tgid"] != postmaster {
			continue
		}
		if state := fields["State"]; fields["TracerPid"] != "0" || strings.HasPrefix(state, "T") || strings.HasPrefix(state, "t") {
			t.Errorf("%s: %s, traced by %s", file, state, fields["TracerPid"])
		}
	}
}

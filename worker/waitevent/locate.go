package waitevent

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/procfs"
	"pg_stat_backtrace/ptrace/waits"
	"pg_stat_backtrace/unwind/elfimage"
	"pg_stat_backtrace/worker/host/rootfs"
	"pg_stat_backtrace/worker/pgcluster"
	"pg_stat_backtrace/worker/pgcontext"
)

// layouts are the offsets of each major version on 64-bit machines: PGPROC (proc.h), PROC_HDR (proc.h) and
// PgBackendStatus (backend_status.h).
//
//nolint:gochecknoglobals // a table
var layouts = map[int]waits.Layout{
	14: earlierLayout, 15: earlierLayout, 16: earlierLayout,
	17: {
		ProcSize: 888, WaitEvent: 712, PID: 60, ProcCount: 32,
		QueryID: 424, State: 232, QueryStart: 32, StateStart: 40, Idle: 1, Running: 2,
	},
	18: {
		ProcSize: 832, WaitEvent: 712, PID: 60, ProcCount: 32,
		QueryID: 424, State: 232, QueryStart: 32, StateStart: 40, Idle: 2, Running: 3, Uring: true,
	},
	19: {
		ProcSize: 896, WaitEvent: 856, PID: 24, ProcCount: 32,
		QueryID: 424, State: 232, QueryStart: 32, StateStart: 40, Idle: 2, Running: 3, Uring: true,
	},
}

//nolint:gochecknoglobals // a table
var earlierLayout = waits.Layout{
	ProcSize: 880, WaitEvent: 712, PID: 64, ProcCount: 32,
	QueryID: 424, State: 232, QueryStart: 32, StateStart: 40, Idle: 1, Running: 2,
}

// Variables of the server, which it exports, stripped or not.
const (
	waitVariable   = "my_wait_event_info"
	procsVariable  = "ProcGlobal"
	statusVariable = "MyBEEntry"
)

// A Server is a running server whose wait events can be timed.
type Server struct {
	Cluster pgcluster.Cluster
	Names   *pgcontext.WaitNames
	Target  waits.Server
}

// Locate finds the variables of a running server. The error wraps waits.ErrUnsupported if its version is not known.
func Locate(c pgcluster.Cluster) (*Server, error) {
	layout, ok := layouts[c.Version]
	if !ok {
		return nil, fmt.Errorf("%w: PostgreSQL %d is not known to this release", waits.ErrUnsupported, c.Version)
	}
	names, err := pgcontext.NewWaitNames(c.Version)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", waits.ErrUnsupported, err)
	}
	rights, err := c.Rights()
	if err != nil {
		return nil, err
	}
	exe, err := rootfs.Open(fmt.Sprintf("/proc/%d/exe", c.PostmasterPID))
	if err != nil {
		return nil, fmt.Errorf("open the server's program: %w", err)
	}
	defer func() { _ = exe.Close() }()
	image, err := elfimage.Open(exe, "postgres")
	if err != nil {
		return nil, fmt.Errorf("read the server's program: %w", err)
	}
	variables, err := image.Defined(waitVariable, procsVariable, statusVariable)
	if err != nil {
		return nil, fmt.Errorf("read the server's program: %w", err)
	}
	bias, err := loadBias(c.PostmasterPID, exe, image)
	if err != nil {
		return nil, err
	}
	for _, name := range []string{waitVariable, procsVariable, statusVariable} {
		if variables[name] == 0 {
			return nil, fmt.Errorf("%w: the server's program does not export %s", waits.ErrUnsupported, name)
		}
	}
	return &Server{Cluster: c, Names: names, Target: waits.Server{
		Postmaster: c.PostmasterPID, Rights: &rights, Layout: layout, WaitPointer: bias + variables[waitVariable],
		ProcGlobal: bias + variables[procsVariable], Status: bias + variables[statusVariable],
		Local: c.Local, ServerPID: serverPID(c),
		ExecutorStart: codeOffset(image, "standard_ExecutorStart"), ExecutorEnd: codeOffset(image, "standard_ExecutorEnd"),
	}}, nil
}

// codeOffset returns the place in the file of an exported function; 0 if there is none.
func codeOffset(image *elfimage.Image, name string) uint64 {
	found, err := image.Defined(name)
	if err != nil {
		return 0
	}
	for _, s := range image.Segments() {
		if addr := found[name]; s.Flags&elf.PF_X != 0 && addr >= s.Vaddr && addr-s.Vaddr < s.Filesz {
			return addr - s.Vaddr + s.Offset
		}
	}
	return 0
}

// serverPID returns the function that translates a process id into the server's.
func serverPID(c pgcluster.Cluster) func(int) int {
	if !c.Outside() {
		return nil
	}
	return func(pid int) int {
		status, err := procfs.ReadStatus(pid)
		if err != nil || len(status.NSPID) == 0 {
			return 0
		}
		return status.NSPID[len(status.NSPID)-1]
	}
}

// loadBias returns the difference of addresses in memory to those in the file.
func loadBias(pid int, exe *os.File, image *elfimage.Image) (uint64, error) {
	maps, err := procfs.Maps(pid)
	if err != nil {
		return 0, fmt.Errorf("read the server's mappings: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(exe.Fd()), &st); err != nil {
		return 0, fmt.Errorf("look at the server's program: %w", err)
	}
	for _, m := range maps {
		if m.Inode != st.Ino || m.Perms&procfs.Exec == 0 {
			continue
		}
		if bias, ok := image.Bias(m.Start, m.Offset); ok {
			return bias, nil
		}
	}
	return 0, errors.New("the server's program is not where its mappings say")
}

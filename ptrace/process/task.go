package process

import (
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Syscall is the content of /proc/PID/task/TID/syscall (proc_pid_syscall(5)).
type Syscall struct {
	Running bool // on the CPU or waiting for it: the other fields are unset
	Number  int  // system call; -1 if the thread is blocked outside of one (a page fault)
	// Args are the call's arguments from the registers; all zero when Number is -1.
	Args   [6]uint64
	SP, PC uint64 // stack pointer and program counter with which the thread will resume in user mode
}

// ReadSyscall returns the system call in which a thread waits. This process needs the right to trace the thread's process.
func ReadSyscall(pid, tid int) (Syscall, error) {
	if pid == tid {
		if text, ok := readKept(pid, keptSyscall); ok {
			if s, err := ParseSyscall(text); err == nil {
				return s, nil
			}
		}
	}
	name := taskPath(pid, tid, "syscall")
	text, err := readFile(name)
	if err != nil {
		return Syscall{}, err
	}
	s, err := ParseSyscall(text)
	return s, wrap(name, err)
}

// ParseSyscall parses the contents of a syscall file: "running", or the number, six arguments when it is not -1, the
// stack pointer and the program counter.
func ParseSyscall(text string) (Syscall, error) {
	text = strings.TrimSuffix(text, "\n")
	if text == "running" {
		return Syscall{Running: true}, nil
	}
	fields := strings.Split(text, " ")
	number, err := strconv.ParseInt(fields[0], 10, 32)
	if err != nil || (len(fields) != 9 && (number != -1 || len(fields) != 3)) {
		return Syscall{}, formatError("syscall", text)
	}
	sp, err1 := strconv.ParseUint(fields[len(fields)-2], 0, 64)
	pc, err2 := strconv.ParseUint(fields[len(fields)-1], 0, 64)
	if err1 != nil || err2 != nil {
		return Syscall{}, formatError("syscall", text)
	}
	s := Syscall{Number: int(number), SP: sp, PC: pc}
	for i, field := range fields[1 : len(fields)-2] {
		if s.Args[i], err = strconv.ParseUint(field, 0, 64); err != nil {
			return Syscall{}, formatError("syscall", text)
		}
	}
	return s, nil
}

// KernelStack returns the frames of a sleeping thread in the kernel, innermost first, as symbol+offset/size. Reading them
// requires CAP_SYS_ADMIN.
func KernelStack(pid, tid int) ([]string, error) {
	text, err := readFile(taskPath(pid, tid, "stack"))
	if err != nil {
		return nil, err
	}
	return ParseKernelStack(text), nil
}

// ParseKernelStack parses the contents of a stack file (proc_pid_stack(5)). It skips unknown lines.
func ParseKernelStack(text string) []string {
	const most = 64 // the kernel shows no more (MAX_STACK_TRACE_DEPTH in fs/proc/base.c)
	var frames []string
	for line := range strings.Lines(text) {
		_, frame, ok := strings.Cut(strings.TrimSpace(line), ">] ")
		if ok && frame != "" && len(frames) < most {
			frames = append(frames, frame)
		}
	}
	return frames
}

// WaitChannel returns the function of the kernel in which a thread sleeps. It is "" if the thread does not sleep or
// the kernel does not show it.
func WaitChannel(pid, tid int) (string, error) {
	text, err := readFile(taskPath(pid, tid, "wchan"))
	if err != nil || text == "0" {
		return "", err
	}
	return text, nil
}

// Threads lists the thread ids of a process in ascending order. Threads may start and end meanwhile.
func Threads(pid int) ([]int, error) {
	return numbers(procPath(pid, "task"))
}

// LiveThread returns the id of a thread through which the memory and the files of a process can be read. It is the main
// thread, or another live thread if the main thread has exited. /proc/PID/maps, exe, root and mem belong to the main thread,
// and are empty after its end.
func LiveThread(pid int) int {
	main, err := ReadStat(pid)
	if err != nil || main.Threads <= 1 || main.State != 'Z' && main.State != 'X' {
		return pid
	}
	tids, err := Threads(pid)
	if err != nil {
		return pid
	}
	for _, tid := range tids {
		if stat, err := ReadTaskStat(pid, tid); err == nil && tid != pid && stat.Flags&Exiting == 0 {
			return tid
		}
	}
	return pid
}

// Processes lists the ids of all visible processes in ascending order.
func Processes() ([]int, error) {
	return numbers("/proc")
}

// numbers lists the entries of a directory whose names are numbers.
func numbers(directory string) ([]int, error) {
	names, err := readNames(directory)
	if err != nil {
		return nil, wrap(directory, err)
	}
	ids := make([]int, 0, len(names))
	for _, name := range names {
		if id, err := strconv.ParseUint(name, 10, 31); err == nil {
			ids = append(ids, int(id))
		}
	}
	slices.Sort(ids)
	return ids, nil
}

func readNames(directory string) ([]string, error) {
	file, err := os.Open(directory)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	return file.Readdirnames(-1)
}

// Namespace returns the inode number that identifies a namespace of the process; kind is a name in /proc/PID/ns such
// as "pid", "user" or "mnt". It needs the right to read the process (PTRACE_MODE_READ).
func Namespace(pid int, kind string) (uint64, error) {
	name := procPath(pid, "ns/"+kind)
	link, err := os.Readlink(name)
	if err != nil {
		return 0, wrap(name, err)
	}
	text, ok1 := strings.CutPrefix(link, kind+":[")
	text, ok2 := strings.CutSuffix(text, "]")
	inode, err := strconv.ParseUint(text, 10, 64)
	if !ok1 || !ok2 || err != nil {
		return 0, wrap(name, formatError("link", link))
	}
	return inode, nil
}

// Children lists the child processes of all threads of a process in ascending order. The list of a running process
// may be incomplete, because a child that ends while the kernel writes the list can hide the children after it. To find out
// whether one process is a child, read its PPID.
func Children(pid int) ([]int, error) {
	threads, err := Threads(pid)
	if err != nil {
		return nil, err
	}
	var children []int
	for _, tid := range threads {
		text, err := readLarge(taskPath(pid, tid, "children"))
		if errors.Is(err, ErrGone) {
			if len(threads) == 1 {
				return childrenByScan(pid)
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		for field := range strings.FieldsSeq(text) {
			id, err := strconv.ParseUint(field, 10, 31)
			if err != nil {
				return nil, formatError("children", text)
			}
			children = append(children, int(id))
		}
	}
	slices.Sort(children)
	return children, nil
}

// childrenByScan lists the children on kernels without children files (built without CONFIG_PROC_CHILDREN).
func childrenByScan(parent int) ([]int, error) {
	if _, err := ReadStat(parent); err != nil {
		return nil, err
	}
	all, err := Processes()
	if err != nil {
		return nil, err
	}
	var children []int
	for _, pid := range all {
		if s, err := ReadStat(pid); err == nil && s.PPID == parent {
			children = append(children, pid)
		}
	}
	return children, nil
}

// Owner returns the user id that owns the process's files in /proc: the effective user, or root. It is root if the process may
// not be dumped or traced by its own user (PR_SET_DUMPABLE in prctl(2)).
func Owner(pid int) (int, error) {
	var st unix.Stat_t
	name := procPath(pid, "ns") // not the directory itself, which always belongs to the effective user
	if err := unix.Stat(name, &st); err != nil {
		return 0, wrap(name, err)
	}
	return int(st.Uid), nil
}

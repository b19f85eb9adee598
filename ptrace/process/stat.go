package process

import (
	"strconv"
	"strings"
	"time"
)

// Bits of Stat.Flags (include/linux/sched.h).
const (
	// Exiting (PF_EXITING): the thread is ending. It has lost its memory and its stack, or is about to lose them. Until
	// this is done, IsDead is false for its State.
	Exiting = 0x00000004
	// dumpsCore (PF_DUMPCORE): the thread has begun to write a core file.
	dumpsCore = 0x00000200
	// KernelThread (PF_KTHREAD): a thread of the kernel.
	KernelThread = 0x00200000
	// The threads of the kernel that belong to a process (PF_IO_WORKER, since 5.12; PF_USER_WORKER, since 6.4). Older
	// kernels use these bits for something else.
	ioWorker, userWorker = 0x00000010, 0x00004000
)

// Stat is a part of /proc/PID/stat (proc_pid_stat(5)).
type Stat struct {
	PID     int
	Comm    string // name of the executable or thread, at most 15 arbitrary bytes (64 for kernel threads)
	State   byte   // R, S, D, T (stopped), t (traced), Z (zombie), X (dead), I (idle kernel thread)
	PPID    int
	Flags   uint32 // PF_ flags of the kernel
	Threads int
	// StartTime is in clock ticks (sysconf(_SC_CLK_TCK), 100 per second) since boot. It does not change with
	// execve(2). PID and start time together identify a process until the machine is rebooted.
	StartTime uint64
	// StartCode and StackStart are addresses that change with execve(2) (under address space randomization). They are
	// 0 or 1 if the reader may not trace the process.
	StartCode, StackStart uint64
	Processor             int // on which the thread ran last
}

// Worker reports whether a thread is a worker that the kernel has added to a process, for io_uring or vhost. Such a
// thread never runs the process's code. Worker checks the name as well, because older kernels use the flags
// differently.
func (s *Stat) Worker() bool {
	named := strings.HasPrefix(s.Comm, "iou-") || strings.HasPrefix(s.Comm, "vhost-")
	return named && s.Flags&(ioWorker|userWorker) != 0
}

// Dumping reports whether the thread is writing the core file of its process, or piping it to a program.
func (s *Stat) Dumping() bool { return s.Flags&dumpsCore != 0 && s.Flags&Exiting == 0 }

// StartTicks converts a start time of the kernel, in ns since boot, to Stat.StartTime.
func StartTicks(sinceBoot uint64) uint64 {
	return sinceBoot / tick
}

// tick is the unit of Stat.StartTime in ns: USER_HZ is 100 on all supported architectures.
const tick = 10_000_000

// SinceBoot converts Stat.StartTime to the time between the boot of the host and the start of the process.
func SinceBoot(startTime uint64) time.Duration { return time.Duration(startTime) * tick }

// ReadStat reads the stat file of a process. Values that each thread has separately are those of the main thread.
func ReadStat(pid int) (Stat, error) {
	if text, ok := readKept(pid, keptStat); ok {
		if s, err := ParseStat(text); err == nil {
			return s, nil
		}
	}
	return readStat(procPath(pid, "stat"))
}

// ReadTaskStat reads the stat file of one thread.
func ReadTaskStat(pid, tid int) (Stat, error) {
	return readStat(taskPath(pid, tid, "stat"))
}

func readStat(name string) (Stat, error) {
	text, err := readFileOnce(name)
	if err != nil {
		return Stat{}, err
	}
	s, err := ParseStat(text)
	return s, wrap(name, err)
}

// ParseStat parses the contents of a stat file. The name in parentheses may contain any bytes, including parentheses
// and blanks, so it ends at the last closing parenthesis.
func ParseStat(text string) (Stat, error) {
	first, last := strings.Index(text, " ("), strings.LastIndex(text, ") ")
	if first < 0 || last < first+2 {
		return Stat{}, formatError("stat", text)
	}
	s := Stat{Comm: text[first+2 : last]}
	pid, err := strconv.ParseUint(text[:first], 10, 31)
	if err != nil {
		return Stat{}, formatError("pid in stat", text)
	}
	s.PID = int(pid)
	const fields = 37 // state (field 3 of the manual page) to processor (39)
	var f [fields]string
	if rest := split(text[last+2:], f[:]); rest < fields || len(f[0]) != 1 {
		return Stat{}, formatError("stat", text[last:])
	}
	s.State = f[0][0]
	if !s.numbers(&f) {
		return Stat{}, formatError("number in stat", text[last:])
	}
	return s, nil
}

// numbers parses the numeric fields, and reports whether all are valid. The index in f is the number in the manual page less 3.
func (s *Stat) numbers(f *[37]string) bool {
	ppid, err1 := strconv.ParseUint(f[1], 10, 31)
	flags, err2 := strconv.ParseUint(f[6], 10, 32)
	threads, err3 := strconv.ParseUint(f[17], 10, 31)
	start, err4 := strconv.ParseUint(f[19], 10, 64)
	code, err5 := strconv.ParseUint(f[23], 10, 64)
	stack, err6 := strconv.ParseUint(f[25], 10, 64)
	processor, err7 := strconv.ParseInt(f[36], 10, 32)
	s.PPID, s.Flags, s.Threads = int(ppid), uint32(flags), int(threads)
	s.StartTime, s.StartCode, s.StackStart, s.Processor = start, code, stack, int(processor)
	return err1 == nil && err2 == nil && err3 == nil && err4 == nil && err5 == nil && err6 == nil && err7 == nil
}

// split stores the blank-separated fields of a text in f. It returns how many it stored, at most len(f).
func split(text string, f []string) int {
	for i := range f {
		field, rest, found := strings.Cut(text, " ")
		if field == "" {
			return i
		}
		f[i], text = field, rest
		if !found {
			return i + 1
		}
	}
	return len(f)
}

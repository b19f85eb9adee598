package recorder

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/history/rules"
)

// maxKept bounds the descriptors that statuses keeps open between sweeps.
const maxKept = 2000

// mostKept returns maxKept or, if the limit of descriptors is low, an eighth of it.
func mostKept() int {
	const share = 8
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err == nil && limit.Cur/share < maxKept {
		return int(limit.Cur / share)
	}
	return maxKept
}

// statuses reads the states and the context switches of processes. For a process that slept in the last sweep, it reads the number
// of time slices from an open descriptor. If the process has had no time slice since that sweep, it does not read /proc/PID/status,
// which costs ten times as much.
type statuses struct {
	known map[identity]*keptStatus
	files int // number of open descriptors
	most  int // largest number of open descriptors
}

// keptStatus is the last status of a process.
type keptStatus struct {
	file   *os.File // /proc/PID/schedstat; nil: not open
	slices uint64   // number of time slices before the status was read; 0: not known
	proc   rules.Proc
	sweep  bool // the process is in this sweep
}

// read returns the state of a process, and false if it cannot be read. id has the process id that the server sees; pid is the id
// that this program sees.
func (s *statuses) read(id identity, pid int) (rules.Proc, bool) {
	if s.known == nil {
		s.known, s.most = map[identity]*keptStatus{}, mostKept()
	}
	k := s.known[id]
	if k == nil {
		k = &keptStatus{}
		s.known[id] = k
		if s.files < s.most {
			if f, err := os.Open("/proc/" + strconv.Itoa(pid) + "/schedstat"); err == nil {
				k.file = f
				s.files++
			}
		}
	}
	k.sweep = true
	slices := k.timeSlices()
	if slices != 0 && slices == k.slices && k.proc.State == 'S' {
		return k.proc, true
	}
	k.slices = 0
	st, err := process.ReadStatus(pid)
	if err != nil {
		return rules.Proc{}, false
	}
	k.slices = slices
	k.proc = rules.Proc{State: st.State, Switches: st.VoluntarySwitches + st.InvoluntarySwitches}
	if st.State == 'R' {
		k.proc.Ran = ran(pid)
	}
	return k.proc, true
}

// timeSlices returns how often the process got a processor; 0: not known. If the process has ended, the result is 0, even if
// another process has its PID now: the open descriptor belongs to the process for which it was opened.
func (k *keptStatus) timeSlices() uint64 {
	const column, most = 2, 128
	if k.file == nil {
		return 0
	}
	var b [most]byte
	n, err := unix.Pread(int(k.file.Fd()), b[:], 0)
	if err != nil || n <= 0 {
		return 0
	}
	fields := strings.Fields(string(b[:n]))
	if len(fields) <= column {
		return 0
	}
	slices, err := strconv.ParseUint(fields[column], 10, 64)
	if err != nil {
		return 0
	}
	return slices
}

// end ends a sweep. It forgets the processes for which the method read was not called in this sweep.
func (s *statuses) end() {
	for id, k := range s.known {
		if k.sweep {
			k.sweep = false
			continue
		}
		s.forget(id, k)
	}
}

func (s *statuses) forget(id identity, k *keptStatus) {
	if k.file != nil {
		_ = k.file.Close()
		s.files--
	}
	delete(s.known, id)
}

// close forgets all processes.
func (s *statuses) close() {
	for id, k := range s.known {
		s.forget(id, k)
	}
}

// Package archcheck contains the tests of other architectures that need a whole machine: a kernel, a PostgreSQL server,
// a worker and sessions. scripts/check-arch.sh builds the tests for the architecture and runs them in a virtual
// machine, whose process 1 is the command tools/archcheck/init. Tests that need no other kernel also run without a
// virtual machine. The package must not know how the worker works inside: it runs the program, and uses it through SQL.
package archcheck

// Result is the test result of one server on one kernel: a line of doc/internals/benchmarks.md's table of architectures.
type Result struct {
	Machine    string  `json:"machine"`    // as uname -m says it
	Kernel     string  `json:"kernel"`     // release
	PostgreSQL string  `json:"postgresql"` // version and, if it is not Debian's, whose build
	Processes  int     `json:"processes"`  // captured through SQL, of all kinds
	Kinds      int     `json:"kinds"`      // backend_type of pg_stat_activity
	Captures   int     `json:"captures"`   // captures whose stack was checked
	Frames     int     `json:"frames"`     // in all captures
	Asleep     int     `json:"asleep"`     // sleeping processes, whose second capture had the same addresses
	Unstopped  int     `json:"unstopped"`  // sleeping processes whose capture without a stop had as many frames
	Chained    int     `json:"chained"`    // frames found by a frame pointer or back chain
	Followed   int     `json:"followed"`   // frames found by following instructions
	Signals    int     `json:"signals"`    // frames of signal handlers
	VDSO       int     `json:"vdso"`       // frames in the vDSO
	PauseP50   float64 `json:"pause_p50"`  // microseconds
	PauseMax   float64 `json:"pause_max"`  // microseconds
}

// Marker begins the line of a test's output that has a Result as JSON.
const Marker = "@@result "

// YamaMarker begins the line of a test's output that says which values of kernel.yama.ptrace_scope the test tried.
const YamaMarker = "@@yama "

// Instructions has the numbers of processor instructions that the timing of wait events takes on one kernel. They are a
// section of doc/internals/benchmarks.md.
type Instructions struct {
	Kernel     string `json:"kernel"`     // release
	PostgreSQL string `json:"postgresql"` // version
	// Transactions has the instructions of one transaction of pgbench, by pgbench's mode and the method of timing.
	Transactions map[string]map[string]float64 `json:"transactions"`
	// Calls has the instructions of one system call, by the method of timing and the call's name.
	Calls map[string]map[string]float64 `json:"calls"`
}

// InstructionsMarker begins the line of a test's output that has Instructions as JSON.
const InstructionsMarker = "@@instructions "

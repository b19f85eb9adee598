// Package plan reads the plans of the statements that a PostgreSQL backend runs now, from outside: from a copy of its
// stack, and from its memory.
//
// Each frame of the exported functions standard_ExecutorRun and standard_ExecutorFinish is one statement that runs: a
// Level. The registers and the stack of the frame have a pointer to the statement's QueryDesc, or to the root of its
// tree of PlanStates. Such a pointer is accepted only if the links and node tags of the structures to which it points
// agree, and a tree only if all its nodes do. Levels, trees and names that are not accepted are left out, with a reason.
// A Proof says which fields of a plan were equal to EXPLAIN on a server of the same build.
//
// DescribeCommand adds names to the numbers that utility commands report in shared memory: those of the columns of the
// views pg_stat_progress_*.
//
// The package does not access processes: its caller copies the stack, and passes a Memory to read.
package plan

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"pg_stat_backtrace/worker/report/units"
)

const (
	// maxNodes bounds the nodes of a tree, and the members of a list.
	maxNodes = 20000
	// maxLevels bounds the levels of nested statements.
	maxLevels = 200
	maxSource = 1 << 20
)

// Frame is a function's activation on the stack.
type Frame struct {
	PC    uint64
	Start uint64 // address of the function, 0 if unknown
	End   uint64 // end of the function's code, exclusive; 0 if unknown
	CFA   uint64 // 0 if unknown
	Exact bool   // PC is the current instruction, not a return address
	// Saved are the values of the registers that calls preserve, by number of the register; 0 if a value is unknown.
	Saved []uint64
}

// Range is a range of addresses. End is exclusive.
type Range struct{ Start, End uint64 }

// Stack is a copied stack. Its field Functions has, by name, the addresses of the functions that the function Functions
// lists, as far as the server exports them.
type Stack struct {
	Major     int
	Frames    []Frame // innermost first
	Start     uint64
	Words     []uint64 // from Start
	Data      []Range  // writable private memory, in address order
	Shared    []Range  // writable memory that other processes may share, in address order
	Code      []Range  // in address order
	Functions map[string]uint64
	// Whole is set if the stack is complete: its outermost frame is the first function of the process.
	Whole bool
	// X86 is set if the code is for x86_64, and A64 if it is for aarch64.
	X86, A64 bool
}

// Functions returns the names of the functions whose addresses a Stack has. Every server exports them.
func Functions() []string {
	return append([]string{executorRun, executorFinish, setParamPlan, evalPlanQual, evalPlanQualNext, multiExec + "Hash",
		multiExec + "BitmapIndexScan", multiExec + "BitmapAnd", multiExec + "BitmapOr", execScan}, runners...)
}

// runners are the functions by which functions, procedures and triggers run statements: the language SQL, and SPI. SPI_cursor_fetch
// and similar functions end with a jump, so they have no frame. PortalRunFetch stands for them. It also runs the client's FETCH, whose
// cursor may belong to a function. At COMMIT and ROLLBACK, PersistHoldablePortal runs the rest of cursors WITH HOLD and of the loops of
// a procedure. A compiler may have inlined it into its callers, so they are in the list. A parallel worker does not know whether a
// function of its leader runs the statement.
//
//nolint:gochecknoglobals // a table
var runners = []string{
	"fmgr_sql", "SPI_execute", "SPI_execute_extended", "SPI_execute_plan", "SPI_execute_plan_extended",
	"SPI_execute_plan_with_paramlist", "SPI_execute_snapshot", "SPI_execute_with_args", "PortalRunFetch", "ParallelQueryMain",
	"PersistHoldablePortal", "HoldPinnedPortals", "PreCommit_Portals",
}

const (
	executorRun      = "standard_ExecutorRun"
	executorFinish   = "standard_ExecutorFinish"
	setParamPlan     = "ExecSetParamPlan"
	evalPlanQual     = "EvalPlanQual"
	evalPlanQualNext = "EvalPlanQualNext"
	multiExec        = "MultiExec"
	// execScan is the function to which the functions of most scans jump. Without its address, and without call frame
	// information, a frame in it would be in an unknown function.
	execScan = "ExecScan"
)

// Level is a statement that runs. The outermost level comes first.
type Level struct {
	Source string // the text of the query that contains the statement, "" if unknown
	Top    *Node  // nil if the plan is left out; see Reason
	// Reason says why the plan is left out, or why no node is marked as Running.
	Reason string
	// LeftOut is the number of statements that were left out here, and for which this level stands; 0 for a statement
	// that was read.
	LeftOut int
	// Inner is false only if the client itself runs the statement. It is set for statements of functions and cursors, and if the stack
	// is not whole.
	Inner bool
	// Returned counts the rows that this run of a SELECT has returned; nil if they are not known.
	Returned *int64

	command                   uint32
	estate, plannedStmt, root uint64
	frame                     int
	finishes                  bool // the frame belongs to standard_ExecutorFinish
	nodes                     map[uint64]*Node
	initPlans                 []*Node
	tables                    []table
}

// Node is a node of a plan.
type Node struct {
	Kind  string // "SeqScan", as in PostgreSQL's node tags
	Label string // "InitPlan 1", "" for other nodes
	// Properties have the names of EXPLAIN (FORMAT JSON). A missing property is not known, or the node has none.
	Properties           map[string]any
	Startup, Total, Rows float64
	Width                int
	Active               bool     // the process is in this node or in a node below it
	Running              bool     // the innermost active node that is certain
	Below                bool     // a node below this one may run; which one is not known
	Actual               *Actual  // nil unless the statement is instrumented
	Progress             []Figure // nil if the node has none, or it is not known
	Children             []*Node

	relationship string
	// linked is set if other structures confirm the command and the table of a ModifyTable; see links.
	linked bool
	// shared is set if several processes share the scan, so that its block is not a position in the whole scan.
	shared   bool
	id       int
	addr     uint64
	plan     uint64
	function uint64 // ExecProcNodeReal
	// The children by kind: others are the outer and the inner input, members the inputs of nodes like Append.
	init, others, members, subPlans []*Node
}

// all returns the children in the order of EXPLAIN.
func (n *Node) all() []*Node {
	out := append([]*Node{}, n.init...)
	out = append(out, n.others...)
	out = append(out, n.members...)
	return append(out, n.subPlans...)
}

// reader is the state of one Read.
type reader struct {
	*pages
	*structures

	stack  *Stack
	splits map[uint64][]speculated // results of speculatedCalls, by the return address
}

// data reports whether an address is aligned and lies in writable private memory.
func (r *reader) data(a uint64) bool { return a != 0 && a%wordSize == 0 && within(r.stack.Data, a) }

// within reports whether an address lies in one of the ranges, which are in address order.
func within(ranges []Range, a uint64) bool {
	_, found := slices.BinarySearchFunc(ranges, a, func(r Range, a uint64) int {
		switch {
		case r.End <= a:
			return -1
		case r.Start > a:
			return 1
		}
		return 0
	})
	return found
}

// Read returns the levels of a process whose stack was copied. The error is an UnknownLayoutError. The process may run while
// Read reads its memory. So the result is certain only if a later call of Read, with a new copy of the stack, returns levels
// that are the same (see Same).
func Read(stack *Stack, memory Memory) ([]*Level, error) {
	s, err := structuresOf(stack.Major)
	if err != nil {
		return nil, err
	}
	r := &reader{pages: newPages(memory), structures: s, stack: stack}
	defer r.release()
	levels := r.levels()
	for _, l := range levels {
		if l.Reason != "" {
			continue
		}
		if err := r.tree(l); err != nil {
			l.Top, l.Reason = nil, err.Error()
		}
		if r.full {
			l.Top, l.Reason = nil, "the plan is too large: its nodes lie in more memory than is read at once (64 MB)"
		}
	}
	r.mark(levels)
	return levels, nil
}

// Same reports whether two results of Read have the same statements, and the same trees.
func Same(a, b []*Level) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		x, y := a[i], b[i]
		if x.estate != y.estate || x.plannedStmt != y.plannedStmt || x.root != y.root || x.Source != y.Source ||
			(x.Top == nil) != (y.Top == nil) || x.Top != nil && !same(x.Top, y.Top) {
			return false
		}
	}
	return true
}

func same(a, b *Node) bool {
	if a.addr != b.addr || a.plan != b.plan || a.Title() != b.Title() || a.Label != b.Label || a.Startup != b.Startup ||
		a.Total != b.Total || a.Rows != b.Rows || a.Width != b.Width || len(a.Children) != len(b.Children) {
		return false
	}
	for i := range a.Children {
		if !same(a.Children[i], b.Children[i]) {
			return false
		}
	}
	return true
}

// proveRoot checks the links between an EState, its PlannedStmt and the root of its tree.
func (r *reader) proveRoot(estate, stmt, root uint64) bool {
	if !r.data(estate) || !r.data(stmt) || !r.data(root) || r.kind(estate) != "EState" || r.kind(stmt) != "PlannedStmt" {
		return false
	}
	plan := r.pointer(root, r.PlanState.Plan)
	kind, ok := stateOf(r.kind(root))
	return ok && r.data(plan) && r.kind(plan) == kind && r.pointer(root, r.PlanState.State) == estate &&
		r.pointer(estate, r.EState.EsPlannedstmt) == stmt && r.pointer(stmt, r.PlannedStmt.PlanTree) == plan
}

// stateOf returns the kind of the plan node for a kind of PlanState: "SeqScan" for "SeqScanState". It returns false for
// other kinds.
func stateOf(kind string) (string, bool) {
	plan, ok := strings.CutSuffix(kind, "State")
	return plan, ok && plan != "E" && plan != "SubPlan"
}

// candidate returns the level if v is a pointer to the level's QueryDesc, or to the root of its tree; otherwise nil.
func (r *reader) candidate(v uint64) *Level {
	const firstCommand, lastCommand = 1, 6
	if !r.data(v) {
		return nil
	}
	if operation := r.unsigned(v, r.QueryDesc.Operation); operation >= firstCommand && operation <= lastCommand {
		estate, stmt := r.pointer(v, r.QueryDesc.Estate), r.pointer(v, r.QueryDesc.Plannedstmt)
		root := r.pointer(v, r.QueryDesc.Planstate)
		if r.proveRoot(estate, stmt, root) && r.unsigned(stmt, r.PlannedStmt.CommandType) == operation {
			l := &Level{estate: estate, plannedStmt: stmt, root: root}
			if text := r.pointer(v, r.QueryDesc.SourceText); text != 0 {
				l.Source, _ = r.text(text, maxSource)
			}
			return l
		}
	}
	if _, ok := stateOf(r.kind(v)); ok {
		estate := r.pointer(v, r.PlanState.State)
		if !r.data(estate) {
			return nil
		}
		if stmt := r.pointer(estate, r.EState.EsPlannedstmt); r.proveRoot(estate, stmt, v) {
			return &Level{estate: estate, plannedStmt: stmt, root: v}
		}
	}
	return nil
}

// levels finds the level of each frame of standard_ExecutorRun and standard_ExecutorFinish. If there are too many of them, those
// in the middle are left out: the outermost levels show what the client wants, and the innermost levels show what runs.
func (r *reader) levels() []*Level {
	var frames []int
	for k := len(r.stack.Frames) - 1; k >= 0; k-- {
		if r.in(k, executorRun) || r.in(k, executorFinish) {
			frames = append(frames, k)
		}
	}
	var out []*Level
	taken := map[uint64]bool{}
	for i, k := range frames {
		if leftOut := len(frames) - maxLevels; leftOut > 0 && i >= maxLevels/2 && i < maxLevels/2+leftOut {
			if i == maxLevels/2 {
				out = append(out, &Level{
					frame: k, LeftOut: leftOut, Inner: true,
					Reason: fmt.Sprintf("%s left out here: at most %d are read", units.Plural(leftOut, "%d {statement is|statements are}"), maxLevels),
				})
			}
			continue
		}
		l := r.levelOf(k, taken)
		if l == nil {
			l = &Level{Reason: "the statement was not found in the memory of its stack frame"}
		}
		l.frame, l.finishes = k, r.in(k, executorFinish)
		// CALL, COMMIT and other commands run functions without a statement of the client around them.
		l.Inner = i > 0 || !r.stack.Whole || r.inFunction(k)
		taken[l.estate] = l.estate != 0
		out = append(out, l)
	}
	return out
}

// inFunction reports whether a function runs the statement of frame k.
func (r *reader) inFunction(k int) bool {
	for j := k + 1; j < len(r.stack.Frames); j++ {
		if slices.ContainsFunc(runners, func(name string) bool { return r.in(j, name) }) {
			return true
		}
	}
	return false
}

// in reports whether frame k is in an exported function.
func (r *reader) in(k int, function string) bool {
	start := r.stack.Functions[function]
	return start != 0 && r.stack.Frames[k].Start == start
}

// levelOf finds the level of frame k: first by the values of the frame's saved registers, then by the words of the
// stack in this frame and the next inner ones. These words may be left over from earlier calls, so all levels to which
// they point must be the same. taken has the levels of outer frames, by EState.
func (r *reader) levelOf(k int, taken map[uint64]bool) *Level {
	const next = 3
	if l, one := r.only(r.stack.Frames[k].Saved, taken); l != nil {
		if one {
			return l
		}
		return nil
	}
	var words []uint64
	for j := k; j >= max(0, k-next); j-- {
		if j < k && (r.in(j, executorRun) || r.in(j, executorFinish)) {
			break
		}
		words = append(words, r.words(j)...)
	}
	if l, one := r.only(words, taken); one {
		return l
	}
	return nil
}

// only returns the level to which values point, apart from the levels in the map taken. one is true if they point to exactly one
// such level. A pointer to the QueryDesc is preferred, because the QueryDesc has the text.
func (r *reader) only(values []uint64, taken map[uint64]bool) (found *Level, one bool) {
	for _, v := range values {
		l := r.candidate(v)
		switch {
		case l == nil || taken[l.estate]:
		case found == nil:
			found = l
		case found.estate != l.estate:
			return found, false
		case found.Source == "":
			found = l
		}
	}
	return found, found != nil
}

// words returns the words of a frame's part of the stack.
func (r *reader) words(k int) []uint64 {
	low, high := r.stack.Start, r.stack.Frames[k].CFA
	if k > 0 {
		low = max(low, r.stack.Frames[k-1].CFA)
	}
	from, to := int64(low-r.stack.Start)/wordSize, int64(high-r.stack.Start)/wordSize // checked below
	if high < low || to > int64(len(r.stack.Words)) {
		return nil
	}
	return r.stack.Words[from:to]
}

// whole reports whether an estimate is a number that the planner can produce.
func whole(v float64) bool {
	return v == 0 || v >= 1e-100 && v <= 1e300 && !math.IsNaN(v)
}

package runningplan

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pg_stat_backtrace/internal/pgtest"
	"pg_stat_backtrace/ptrace/process"
	"pg_stat_backtrace/worker/capture"
	"pg_stat_backtrace/worker/pg/cluster"
	"pg_stat_backtrace/worker/pg/layout"
	"pg_stat_backtrace/worker/pg/plan"
)

// recorded is the memory of a process at one moment. Equal pages of several moments are kept once.
type recorded struct {
	stack *plan.Stack
	pages map[uint64]*[4096]byte
	code  map[uint64]*[4096]byte
}

func (m *recorded) Read(addr uint64, p []byte) (int, error) {
	done := 0
	for done < len(p) {
		page := m.pages[(addr+uint64(done))&^4095]
		if page == nil {
			page = m.code[(addr+uint64(done))&^4095]
		}
		if page == nil {
			return done, errors.New("not recorded")
		}
		done += copy(p[done:], page[(addr+uint64(done))%4096:])
	}
	return done, nil
}

// levels reads the plans and their figures with the present layout.
func (m *recorded) levels() []*plan.Level {
	levels, err := plan.Read(m.stack, m)
	if err != nil {
		return nil
	}
	var copies []plan.Copy
	for _, p := range plan.Pieces(m.stack, levels, m) {
		data := make([]byte, p.Length)
		if n, _ := m.Read(p.Address, data); n == len(data) {
			copies = append(copies, plan.Copy{Address: p.Address, Data: data})
		}
	}
	plan.Figures(m.stack, levels, copies)
	return levels
}

// moments are recorded statements, with the truth about them.
type moments struct {
	known   map[[4096]byte]*[4096]byte
	made    []*recorded
	truths  []*observation
	capture *capture.Capturer
	code    map[uint64]*[4096]byte
}

func (m *moments) record(ctx context.Context, target process.Target) (*capture.Plans, error) {
	stack, err := m.capture.PlanStack(ctx, target)
	if err != nil {
		return nil, err
	}
	memory, r := process.NewMemory(target.PID), &recorded{stack: stack, pages: map[uint64]*[4096]byte{}}
	ranges := slices.Concat(stack.Data, stack.Shared)
	if m.code == nil {
		m.code = map[uint64]*[4096]byte{}
		ranges = slices.Concat(ranges, stack.Code)
	}
	for _, one := range ranges {
		const most = 32 << 20
		if one.End-one.Start > most {
			continue // the shared buffers
		}
		data := make([]byte, one.End-one.Start)
		n, _ := memory.Read(one.Start, data)
		for at := 0; at+4096 <= n; at += 4096 {
			page := [4096]byte(data[at:])
			if m.known[page] == nil {
				m.known[page] = &page
			}
			r.pages[one.Start+uint64(at)] = m.known[page]
			if slices.Contains(stack.Code, one) {
				m.code[one.Start+uint64(at)] = m.known[page]
			}
		}
	}
	r.code = m.code
	m.made = append(m.made, r)
	return m.capture.Plans(ctx, target, false)
}

// TestShiftedLayouts moves each member of the layout. A calibration with the same layout must then leave out everything
// that is false: in the statements of the calibration, and in others.
//
// It records the memory of some eighty moments, so it runs to its full extent only.
func TestShiftedLayouts(t *testing.T) {
	if !pgtest.Full() && os.Getenv("PGSB_TEST_SEED") == "" {
		t.Skip("neither PGSB_TEST_FULL nor PGSB_TEST_SEED is set")
	}
	bin := pgtest.Newest(t)
	server := pgtest.Start(t, bin, pgtest.Options{})
	server.Exec(t, `CREATE TABLE orders (id int, customer int); INSERT INTO orders SELECT i, i % 50 FROM generate_series(1, 4000) i;
		CREATE TABLE part (id int) PARTITION BY RANGE (id); CREATE TABLE part1 PARTITION OF part FOR VALUES FROM (0) TO (10);
		CREATE TABLE part2 PARTITION OF part FOR VALUES FROM (10) TO (20); INSERT INTO part SELECT generate_series(0, 19); ANALYZE`)
	found, err := cluster.ByDataDir(server.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	m := &moments{known: map[[4096]byte]*[4096]byte{}}
	if m.capture, err = capture.New(capture.Config{LinesWait: time.Minute}); err != nil {
		t.Fatal(err)
	}
	calibrator := &Calibrator{
		Capturer: m.capture, Contains: found.Contains, Read: m.record, observed: func(o *observation) { m.truths = append(m.truths, o) },
		Connect: func(ctx context.Context) (*pgx.Conn, error) {
			return pgx.Connect(ctx, server.DSN(server.User, "postgres"))
		},
	}
	got, err := calibrator.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	statements := m.statements(t, calibrator)
	if len(m.made) != len(m.truths) {
		t.Fatalf("%d moments, %d truths", len(m.made), len(m.truths))
	}
	own, ok := layout.Of(got.Major)
	if !ok {
		t.Fatal("no layout")
	}
	printed := func() (out [][]*plan.Level) {
		for _, s := range append(slices.Clone(m.made), statements...) {
			out = append(out, s.levels())
		}
		return out
	}
	truth := printed()
	proof, err := m.calibrate()
	if err != nil || !slices.Equal(proof.Fields, got.Proof.Fields) {
		t.Fatalf("recorded: %v\n%+v\nlive:\n%+v", err, proof, got.Proof)
	}
	seed, _ := strconv.ParseUint(os.Getenv("PGSB_TEST_SEED"), 10, 64)
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("PGSB_TEST_SEED=%d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	counts := map[string]int{}
	for _, field := range members(own) {
		for _, by := range []int32{-8, -4, 4, 8} {
			if !pgtest.Full() && random.IntN(40) != 0 {
				continue
			}
			before := field.offset.Interface().(layout.Offset)
			if int32(before.Int())+by < 0 {
				continue
			}
			field.offset.Set(reflect.ValueOf(layout.At(int32(before.Int()) + by)))
			name := fmt.Sprintf("%s %+d", field.name, by)
			counts[m.shifted(t, name, truth, printed)]++
			field.offset.Set(reflect.ValueOf(before))
		}
	}
	t.Logf("%v", counts)
}

// shifted calibrates with the present, wrong layout, and compares the printed fields.
func (m *moments) shifted(t *testing.T, name string, truth [][]*plan.Level, printed func() [][]*plan.Level) string {
	t.Helper()
	proof, err := m.calibrate()
	if err != nil {
		return "refused"
	}
	false0, false1 := 0, 0
	for i, levels := range printed() {
		if difference := untrue(levels, truth[i]); difference != "" {
			false0++
		}
		proof.Apply(levels)
		if difference := untrue(levels, truth[i]); difference != "" {
			false1++
			t.Errorf("%s: %s", name, difference)
		}
	}
	switch {
	case false1 > 0:
		return "false"
	case false0 > 0:
		return "false only without the calibration"
	}
	return "true"
}

// calibrate repeats the calibration with recorded moments.
func (m *moments) calibrate() (*plan.Proof, error) {
	comparison := plan.NewComparison()
	for i, truth := range m.truths {
		if err := truth.compare(comparison, m.made[i].levels()); err != nil {
			return nil, err
		}
	}
	return comparison.Proof(), nil
}

// statements records statements that the calibration does not have.
func (m *moments) statements(t *testing.T, calibrator *Calibrator) []*recorded {
	t.Helper()
	kept := m.made
	m.made = nil
	calibrator.observed = nil
	run := func(sql string) {
		r := &calibration{Calibrator: calibrator, comparison: plan.NewComparison(), lock: rand.Int64()}
		var err error
		if r.runner, err = calibrator.Connect(t.Context()); err == nil {
			r.holder, err = calibrator.Connect(t.Context())
		}
		if err == nil {
			r.target, err = calibrator.Contains(int(r.runner.PgConn().PID()))
		}
		if err == nil {
			_, err = r.hold(t.Context(), r.waiting(sql))
		}
		if err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
		_, _ = r.runner.Close(t.Context()), r.holder.Close(t.Context())
	}
	run("SELECT {o.id = 22} FROM orders o JOIN orders p ON o.id = p.customer WHERE p.id > 5")
	run("SELECT customer, count({id = 3000}) FROM orders GROUP BY customer ORDER BY 2")
	run("UPDATE orders o SET customer = CASE WHEN {id = 1500} THEN 1 ELSE 2 END")
	run("INSERT INTO orders SELECT id, CASE WHEN {id = 100} THEN 1 ELSE 2 END FROM orders x WHERE id < 200")
	run("SELECT {id = 12} FROM part")
	run("DELETE FROM part WHERE {id = 15} IS NULL")
	out := m.made
	m.made = kept
	return out
}

// member is a member of a structure.
type member struct {
	name   string
	offset reflect.Value
}

// members returns the members of all structures. The values of enumerations are no places.
func members(l *layout.Layout) (out []member) {
	v := reflect.ValueOf(l).Elem()
	for i := range v.NumField() {
		name := v.Type().Field(i).Name
		if v.Field(i).Kind() != reflect.Struct || name == "Tags" || v.Type().Field(i).Tag.Get("enum") != "" {
			continue
		}
		for j := range v.Field(i).NumField() {
			offset, ok := v.Field(i).Field(j).Interface().(layout.Offset)
			if own := v.Field(i).Type().Field(j).Name; ok && offset.Known() && own != "Size" {
				out = append(out, member{name + "." + own, v.Field(i).Field(j)})
			}
		}
	}
	return out
}

// untrue returns the first property that differs from the truth. A missing one is not untrue.
func untrue(got, want []*plan.Level) string {
	for i, l := range got {
		if i >= len(want) {
			return "a level too many"
		}
		w := want[i]
		if l.Source != "" && l.Source != w.Source {
			return fmt.Sprintf("text %q", l.Source)
		}
		if l.Returned != nil && (w.Returned == nil || *l.Returned != *w.Returned) {
			return fmt.Sprintf("%d rows returned", *l.Returned)
		}
		if l.Top == nil {
			continue
		}
		if w.Top == nil {
			return "a tree too many"
		}
		if difference := untrueNode(l.Top, w.Top); difference != "" {
			return difference
		}
	}
	return ""
}

func untrueNode(got, want *plan.Node) string {
	if got.Kind != want.Kind {
		return fmt.Sprintf("a node %s, not %s", got.Kind, want.Kind)
	}
	for name, value := range got.Properties {
		if want.Properties[name] != value {
			return fmt.Sprintf("%s: %s is %v, not %v", want.Kind, name, value, want.Properties[name])
		}
	}
	if got.Label != "" && got.Label != want.Label && got.Label != "subplan" {
		return fmt.Sprintf("the label %q", got.Label)
	}
	for _, figure := range got.Progress {
		if !slices.Contains(want.Progress, figure) {
			return fmt.Sprintf("%s: %v is not one of %v", want.Kind, figure, want.Progress)
		}
	}
	if got.Actual != nil && (want.Actual == nil || *got.Actual != *want.Actual) {
		return fmt.Sprintf("actual rows %v", *got.Actual)
	}
	if got.Running && !want.Running && (!got.Below || !want.Active) {
		return want.Kind + " runs"
	}
	if got.Active && !want.Active {
		return want.Kind + " is active"
	}
	if len(got.Children) == 0 && len(want.Children) > 0 && strings.HasPrefix(want.Kind, "Custom") {
		return ""
	}
	if len(got.Children) != len(want.Children) {
		return fmt.Sprintf("%d children of %s, not %d", len(got.Children), want.Kind, len(want.Children))
	}
	for i := range got.Children {
		if difference := untrueNode(got.Children[i], want.Children[i]); difference != "" {
			return difference
		}
	}
	return ""
}

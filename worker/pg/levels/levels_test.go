package levels

import (
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"pg_stat_backtrace/internal/figure"
	"pg_stat_backtrace/worker/naming/backtrace"
)

func each(t *testing.T, test func(t *testing.T, f *fake)) {
	t.Helper()
	for major := 14; major <= 19; major++ {
		t.Run(string(rune('0'+major/10))+string(rune('0'+major%10)), func(t *testing.T) { test(t, newFake(major)) })
	}
}

func check(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestPLpgSQLLevels(t *testing.T) {
	each(t, func(t *testing.T, f *fake) {
		f.plpgsql("inner(integer)", 16384, 3, 7)
		f.plpgsql(`"Ö x".f()`, 16385, 17, 1)
		f.plpgsql("early()", 16386, -1, 0)
		estate, _ := f.plpgsql("phrase()", 16387, 2, 12)
		phrase := uint64(rodataAt)
		f.put(phrase, []byte("during function exit\x00"))
		f.put64(estate+uint64(f.layout.errText), phrase)
		f.plpgsql(inlineBlock, 0, 15, 99)
		want := []string{
			"PL/pgSQL function inner(integer) line 7 at CASE",
			`PL/pgSQL function "Ö x".f() line 1 at EXECUTE`,
			"PL/pgSQL function early()",
			"PL/pgSQL function phrase() line 12 during function exit",
			"PL/pgSQL function inline_code_block line 99 at ASSERT",
		}
		check(t, f.lines(), want...)
		f.stripped = true
		check(t, f.lines(), want...)
	})
}

func TestStatementsWithTwoNames(t *testing.T) {
	each(t, func(t *testing.T, f *fake) {
		var want []string
		for kind, s := range statements {
			_, stmt := f.plpgsql("f()", 1, kind, 5)
			if s.other == "" {
				want = append(want, "PL/pgSQL function f() line 5 at "+s.name)
				continue
			}
			f.put(stmt+uint64(s.flag(f.layout)), []byte{1})
			f.plpgsql("f()", 1, kind, 5)
			want = append(want, "PL/pgSQL function f() line 5 at "+s.name, "PL/pgSQL function f() line 5 at "+s.other)
		}
		check(t, f.lines(), want...)
	})
}

// TestSimpleStatement reads a statement that PL/pgSQL evaluates without SPI. A text that changed after the copy is left
// out, as is a text in a frame of another library.
func TestSimpleStatement(t *testing.T) {
	each(t, func(t *testing.T, f *fake) {
		expr := f.alloc(make([]byte, 64))
		f.put64(expr, f.text("SELECT 'ä' INTO x"))
		f.node(execSQLAt, expr)
		f.plpgsql("f()", 1, 16, 4)
		outer := "PL/pgSQL function f() line 4 at SQL statement"
		want := []string{`SQL statement "SELECT 'ä' INTO x"`, outer}
		check(t, f.lines(), want...)
		f.stripped = true
		check(t, f.lines(), want...)

		in := f.input()
		in.Live = func(addr uint64, p []byte) int {
			n := f.read(addr, p)
			if addr == expr {
				p[0]++
			}
			return n
		}
		if levels := f.server().Process(bias).Read(in).Levels; len(levels) != 1 || levels[0].Level.Text != outer {
			t.Errorf("of a changed expression: %v", levels)
		}
		in = f.input()
		in.Frames[0].Module = "other.so"
		if levels := f.server().Process(bias).Read(in).Levels; len(levels) != 1 || levels[0].Level.Text != outer {
			t.Errorf("in a frame of another library: %v", levels)
		}
		f.put64(expr, f.text(strings.Repeat("x", maxStatement+1)))
		check(t, f.lines(), `SQL statement "`+strings.Repeat("x", maxStatement)+`..."`, outer)
		f.put64(expr, 0)
		check(t, f.lines(), outer)
	})
}

// TestVariable is the initialisation of a variable: from 15 on, its line is given.
func TestVariable(t *testing.T) {
	each(t, func(t *testing.T, f *fake) {
		estate, _ := f.plpgsql("f()", 1, 0, 3)
		want := "PL/pgSQL function f() line 3 at statement block"
		if f.layout.errVar != 0 {
			variable := f.alloc(make([]byte, 24))
			f.put32(variable+16, 2)
			f.put64(estate+uint64(f.layout.errVar), variable)
			want = "PL/pgSQL function f() line 2 at statement block"
		}
		check(t, f.lines(), want)
	})
}

func TestOtherLevels(t *testing.T) {
	each(t, func(t *testing.T, f *fake) {
		for mode := range uint32(7) {
			arg := f.node(spiAt, 0)
			f.put64(arg, f.text("SELECT 1"))
			f.put32(arg+8, mode)
		}
		f.put64(f.node(inlineAt, 0), f.text("g"))
		state := f.alloc(make([]byte, 512))
		f.node(copyAt, state)
		f.put64(state+uint64(f.layout.copy.relname), f.text("orders"))
		f.put64(state+uint64(f.layout.copy.lineno), 4711)
		f.put64(state+uint64(f.layout.copy.attname), f.text("price"))
		v := &f.layout.vacuum
		for phase := range uint32(7) {
			state := f.alloc(make([]byte, 512))
			f.node(vacuumAt, state)
			f.put64(state+uint64(v.namespace), f.text("public"))
			f.put64(state+uint64(v.relname), f.text("orders"))
			f.put64(state+uint64(v.indname), f.text("orders_pkey"))
			f.put32(state+uint64(v.block), 12)
			f.put(state+uint64(v.offset), []byte{byte(phase), 0})
			f.put32(state+uint64(v.phase), phase)
		}
		want := []string{
			`SQL statement "SELECT 1"`, `SQL statement "SELECT 1"`, f.layout.expression + ` "SELECT 1"`,
			`PL/pgSQL assignment "SELECT 1"`, `PL/pgSQL assignment "SELECT 1"`, `PL/pgSQL assignment "SELECT 1"`,
			`SQL function "g" during inlining`, "COPY orders, line 4711, column price",
			`while scanning block 12 offset 1 of relation "public.orders"`,
			`while vacuuming index "orders_pkey" of relation "public.orders"`,
			`while vacuuming block 12 offset 3 of relation "public.orders"`,
			`while cleaning up index "orders_pkey" of relation "public.orders"`,
			`while truncating relation "public.orders" to 12 blocks`,
		}
		check(t, f.lines(), want...)
		f.stripped = true
		check(t, f.lines(), want...)
	})
}

func TestSQLFunction(t *testing.T) {
	each(t, func(t *testing.T, f *fake) {
		arg := f.alloc(make([]byte, 512))
		f.node(sqlAt, arg)
		cache := f.alloc(make([]byte, 64))
		want := `SQL function "f"`
		if f.layout.sqlCacheIsArgument {
			f.put64(arg, cache)
			f.put64(cache+40, f.text("f"))
			f.put32(arg+100, 3)
			want += " statement 3"
		} else {
			f.put64(arg+24, cache)
			f.put64(cache, f.text("f"))
		}
		check(t, f.lines(), want)
	})
}

// TestDoubt damages a level in one place at a time. Without damage, the level can be read.
func TestDoubt(t *testing.T) {
	nowhere := uint64(0x1234567890)
	tests := map[string]func(f *fake, estate, stmt uint64){
		"no function":          func(f *fake, estate, _ uint64) { f.put64(estate, 0) },
		"function nowhere":     func(f *fake, estate, _ uint64) { f.put64(estate, nowhere) },
		"statement nowhere":    func(f *fake, estate, _ uint64) { f.put64(estate+uint64(f.layout.errStmt), nowhere) },
		"statement of no kind": func(f *fake, _, stmt uint64) { f.put32(stmt, 27) },
		"negative kind":        func(f *fake, _, stmt uint64) { f.put32(stmt, ^uint32(0)) },
		"negative line":        func(f *fake, _, stmt uint64) { f.put32(stmt+4, ^uint32(0)) },
		"line too large":       func(f *fake, _, stmt uint64) { f.put32(stmt+4, 1<<30) },
		"phrase on the heap": func(f *fake, estate, _ uint64) {
			f.put64(estate+uint64(f.layout.errText), f.text("during nothing"))
		},
		"other code": func(f *fake, _, _ uint64) { f.stripped = true; f.put32(plpgsqlAt+0x10, 0) },
		"signature without end": func(f *fake, estate, _ uint64) {
			function := f.alloc(make([]byte, 64))
			f.put32(function+uint64(f.layout.oid), 1)
			f.put64(function+uint64(f.layout.signature), f.alloc([]byte(strings.Repeat("x", maxSignature+100))))
			f.put64(estate, function)
		},
		"signature without arguments": func(f *fake, estate, _ uint64) {
			function := f.alloc(make([]byte, 64))
			f.put32(function+uint64(f.layout.oid), 1)
			f.put64(function+uint64(f.layout.signature), f.text("f"))
			f.put64(estate, function)
		},
		"block with an oid": func(f *fake, estate, _ uint64) {
			function := f.alloc(make([]byte, 64))
			f.put32(function+uint64(f.layout.oid), 1)
			f.put64(function+uint64(f.layout.signature), f.text(inlineBlock))
			f.put64(estate, function)
		},
		"argument not on the stack": func(f *fake, estate, _ uint64) { f.put64(estate-16, heapAt) },
	}
	for name, damage := range tests {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, f *fake) {
				estate, stmt := f.plpgsql("f()", 1, 3, 7)
				f.plpgsql("outer()", 2, 3, 8)
				damage(f, estate, stmt)
				want := []string{"PL/pgSQL function outer() line 8 at CASE"}
				if name == "other code" {
					want = nil
				}
				check(t, f.lines(), want...)
			})
		})
	}
}

// TestListsThatLoop checks that the walk of a list ends at a node that is not in a frame further out.
func TestListsThatLoop(t *testing.T) {
	for _, next := range []uint64{0, 8, stackLow, heapAt, stackLow + frameSize/2 + 1, ^uint64(7)} {
		f := newFake(15)
		f.plpgsql("f()", 1, 3, 7)
		f.put64(f.last, next)
		check(t, f.lines(), "PL/pgSQL function f() line 7 at CASE")
	}
	f := newFake(15)
	f.put64(listAt, heapAt)
	check(t, f.lines())
}

// TestFrameOfAnotherLibrary checks that a level is left out if its frame is not PL/pgSQL's.
func TestFrameOfAnotherLibrary(t *testing.T) {
	f := newFake(16)
	f.plpgsql("f()", 1, 3, 7)
	in := f.input()
	in.Frames[0].Module = "other.so"
	if got := f.server().Process(bias).Read(in).Levels; len(got) != 0 {
		t.Errorf("levels %v", got)
	}
}

// TestFunctionGone changes the function between the stop and the reading of its name.
func TestFunctionGone(t *testing.T) {
	f := newFake(17)
	f.plpgsql("f()", 1, 3, 7)
	in := f.input()
	later := newFake(17)
	later.alloc([]byte("something else"))
	later.plpgsql("g()", 2, 3, 7)
	in.Live = later.read
	if got := f.server().Process(bias).Read(in).Levels; len(got) != 0 {
		t.Errorf("levels %v", got)
	}
}

func TestQueryAndWait(t *testing.T) {
	read := func(encoding uint32, query string, wait uint32) Result {
		f := newFake(18)
		f.put32(f.pointer(encodeAt+0x100)+8, encoding)
		f.put64(queryAt, f.text(query))
		f.put64(waitAt, f.alloc(make([]byte, 8)))
		f.put32(f.pointer(waitAt), wait)
		return f.server().Process(bias).Read(f.input())
	}
	long := strings.Repeat("x", MaxQuery-1)
	for _, tt := range []struct {
		encoding    uint32
		query, want string
		cut         bool
	}{
		{6, "SELECT 'ä\n'", "SELECT 'ä\n'", false},
		{6, long, long, false},
		{6, long + "ä", long, true},
		{6, long + "xy", long + "x", true},
		{8, "'\xe4'", `'\xe4'`, false},
		{8, "'ä'", `'\xc3\xa4'`, false},
		{99, "'ä'", `'\xc3\xa4'`, false},
	} {
		r := read(tt.encoding, tt.query, 0)
		if r.Query != tt.want || r.QueryCut != tt.cut || r.Wait != (backtrace.Wait{}) {
			t.Errorf("%q in encoding %d: %q, cut %t, %v", tt.query, tt.encoding, r.Query, r.QueryCut, r.Wait)
		}
	}
	for event, want := range map[uint32]backtrace.Wait{
		0: {}, 0x03000005: {Class: "Lock", Event: "transactionid"}, 0x01000007: {Class: "LWLock", Event: "WALBufMapping"},
		0x0100ffff: {Class: "LWLock", Event: "#65535"}, 0x07000003: {Class: "Extension", Event: "#3"},
		0x0b000000: {Class: "InjectionPoint", Event: "#0"}, 0x0c000000: {}, 0x03010005: {}, 0xffffffff: {},
	} {
		if got := read(6, "", event).Wait; got != want {
			t.Errorf("event %#x: %v, want %v", event, got, want)
		}
	}
}

// TestEncodingOfMarkedCode reads the encoding of a server that was compiled with -fcf-protection, and of code that only
// resembles GetDatabaseEncoding.
func TestEncodingOfMarkedCode(t *testing.T) {
	const mark = "\xf3\x0f\x1e\xfa"
	for code, want := range map[string]string{
		mark + "\x48\x8b\x05\xf5\x00\x00\x00\x8b\x40\x08\xc3": "'ä'",
		mark + "\x48\x8b\x05\xf5\x00\x00\x00\x8b\x40\x04\xc3": `'\xc3\xa4'`,
		mark + mark + "\x48\x8b\x05\xf1\x00\x00\x00\x8b\x40":  `'\xc3\xa4'`,
	} {
		f := newFake(19)
		f.put(encodeAt, []byte(code))
		f.put64(queryAt, f.text("'ä'"))
		if got := f.server().Process(bias).Read(f.input()).Query; got != want {
			t.Errorf("query %q, want %q", got, want)
		}
	}
}

func TestNewServer(t *testing.T) {
	all := func(string) uint64 { return 1 }
	for rodata, want := range map[string]int{
		"x\x00postgres (PostgreSQL) 15.18 (Debian)\n\x00": 15, "postgres (PostgreSQL) 18beta1\n": 18,
		"postgres (PostgreSQL) 13.1\n": 0, "postgres (PostgreSQL) 20devel": 0, "": 0, "postgres (PostgreSQL) ": 0,
		"postgres (PostgreSQL) 19rc1":                              19,
		"postgres (PostgreSQL) 15.1\npostgres (PostgreSQL) 16.1\n": 0, "postgres (PostgreSQL) 99999999999999999999": 0,
	} {
		s, err := NewServer(all, strings.NewReader(rodata))
		if want == 0 && !errors.Is(err, ErrNotServer) || want != 0 && (err != nil || s.Major != want) {
			t.Errorf("%q: %+v, %v", rodata, s, err)
		}
	}
	// The data are read in pieces. The version must be found wherever a piece ends.
	const text = "postgres (PostgreSQL) 15.18 (Debian)\n"
	for at := 1<<16 - len(text); at <= 1<<16; at++ {
		before := strings.Repeat("p", at)
		if s, err := NewServer(all, strings.NewReader(before+text+strings.Repeat("p", 1<<17))); err != nil || s.Major != 15 {
			t.Errorf("at %d: %+v, %v", at, s, err)
		}
		if s, err := NewServer(all, strings.NewReader(before+text+before+"postgres (PostgreSQL) 16.1\n")); err == nil {
			t.Errorf("two versions, at %d: %+v", at, s)
		}
	}
	if _, err := NewServer(all, iotest.ErrReader(io.ErrClosedPipe)); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("data that cannot be read: %v", err)
	}
	if _, err := NewServer(func(string) uint64 { return 0 }, strings.NewReader("postgres (PostgreSQL) 15.1")); err == nil {
		t.Error("a server without variables")
	}
}

func (f *fake) pointer(at uint64) uint64 {
	r := reader{in: f.input()}
	p, _ := r.word(at)
	return p
}

// FuzzRead reads a process whose stack, heap and variables are arbitrary.
func FuzzRead(f *testing.F) {
	for _, major := range []int{14, 16, 18} {
		p := newFake(major)
		p.plpgsql("f()", 1, 3, 7)
		p.put64(p.node(spiAt, 0), p.text("SELECT 1"))
		p.node(copyAt, heapAt)
		p.node(vacuumAt, heapAt+64)
		p.node(sqlAt, heapAt+128)
		p.node(workerAt, heapAt+192)
		p.node(lockAt, 0)
		f.Add(uint8(major), p.pieces[stackLow][:0x1800], p.pieces[heapAt][:1024], p.pieces[bias][0x1000:0x1018])
	}
	f.Fuzz(func(t *testing.T, major uint8, stack, heap, variables []byte) {
		if layoutOf(int(major)) == nil {
			major = 15
		}
		p := newFake(int(major))
		p.stripped = len(heap)%2 == 0
		copy(p.pieces[stackLow], stack)
		copy(p.pieces[heapAt], heap)
		copy(p.pieces[bias][0x1000:], variables)
		r := p.server().Process(bias).Read(p.input())
		if len(r.Levels) > maxLevels || len(r.Query) > 4*MaxQuery {
			t.Errorf("%d levels, a query of %d bytes", len(r.Levels), len(r.Query))
		}
		for _, l := range r.Levels {
			if l.Level.Text == "" || l.Level.Line < 0 || l.Frame < 0 || l.Frame >= 64 {
				t.Errorf("level %+v", l)
			}
		}
	})
}

// TestRandomPointers lets words of the stack and the heap point anywhere into the process, or nowhere.
func TestRandomPointers(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	anywhere := func() uint64 {
		starts := []uint64{stackLow, stackLow, heapAt, heapAt, bias, plpgsqlAt, 0, ^uint64(0) - 0x400}
		return starts[random.IntN(len(starts))] + uint64(random.IntN(0x800))&^7
	}
	found := 0
	for round := range 3000 {
		f := newFake(14 + round%5)
		f.stripped = round%2 == 0
		for range 4 {
			f.plpgsql("f()", 1, random.IntN(30), random.IntN(100))
			f.put64(f.node(spiAt, 0), f.text("SELECT 1"))
			callback := []uint64{copyAt, vacuumAt, sqlAt, inlineAt, workerAt, lockAt}[random.IntN(6)]
			f.node(callback, heapAt+uint64(random.IntN(0x400)))
		}
		for range random.IntN(40) {
			f.put64([]uint64{stackLow, heapAt}[random.IntN(2)]+uint64(random.IntN(0x1000))&^7, anywhere())
		}
		for _, l := range f.server().Process(bias).Read(f.input()).Levels {
			found++
			if l.Level.Text == "" || l.Level.Line < 0 || l.Frame < 0 || l.Frame >= 64 {
				t.Fatalf("round %d: level %+v", round, l)
			}
		}
	}
	figure.Printf(t, "%d levels", found)
}

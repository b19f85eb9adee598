package levels

import "testing"

// TestLocks has a wait for a row with each value of XLTW_Oper, and with two invalid values.
func TestLocks(t *testing.T) {
	each(t, func(t *testing.T, f *fake) {
		class := f.alloc(make([]byte, 128))
		f.put32(class, 16384)
		f.put(class+uint64(f.layout.lock.className), []byte("orders\x00"))
		relation := f.alloc(make([]byte, 128))
		f.put64(relation+uint64(f.layout.lock.classRow), class)
		f.put32(relation+uint64(f.layout.lock.relationID), 16384)
		tuple := f.alloc([]byte{1, 0, 2, 0, 3, 0})
		for oper := range uint32(10) {
			arg := f.node(lockAt, 0)
			f.put32(arg, oper)
			f.put64(arg+uint64(f.layout.lock.relation), relation)
			f.put64(arg+uint64(f.layout.lock.tuple), tuple)
		}
		want := []string{
			`while updating tuple (65538,3) in relation "orders"`,
			`while deleting tuple (65538,3) in relation "orders"`,
			`while locking tuple (65538,3) in relation "orders"`,
			`while locking updated version (65538,3) of tuple in relation "orders"`,
			`while inserting index tuple (65538,3) in relation "orders"`,
			`while checking uniqueness of tuple (65538,3) in relation "orders"`,
			`while rechecking updated tuple (65538,3) in relation "orders"`,
			`while checking exclusion constraint on tuple (65538,3) in relation "orders"`,
		}
		check(t, f.lines(), want...)
		f.stripped = true
		check(t, f.lines(), want...)
		f.put32(class, 16385) // not the row of this relation
		check(t, f.lines())
		f.put32(class, 16384)
		f.put(tuple, make([]byte, 6)) // no position
		check(t, f.lines())
	})
}

// TestParallelVacuum has a process of a parallel VACUUM in each of its states. Version 14 has another function for
// these.
func TestParallelVacuum(t *testing.T) {
	each(t, func(t *testing.T, f *fake) {
		l := &f.layout.parallel
		for status := range uint32(4) {
			state := f.alloc(make([]byte, 512))
			f.node(workerAt, state)
			if l.status == 0 {
				continue
			}
			f.put64(state+uint64(l.namespace), f.text("public"))
			f.put64(state+uint64(l.relname), f.text("orders"))
			f.put64(state+uint64(l.indname), f.text("orders_pkey"))
			f.put32(state+uint64(l.status), status)
		}
		var want []string
		if l.status != 0 {
			want = []string{
				`while vacuuming index "orders_pkey" of relation "public.orders"`,
				`while cleaning up index "orders_pkey" of relation "public.orders"`,
			}
		}
		check(t, f.lines(), want...)
		f.stripped = true
		check(t, f.lines(), want...)
	})
}

// TestLanguages checks functions and blocks in Perl and Python. Their levels count only in frames of their own
// library.
func TestLanguages(t *testing.T) {
	perl := func(f *fake) {
		f.node(perlAt, f.text("hash"))
		f.node(perlDoAt, 0)
		f.put64(f.last+16, 0)
	}
	python := func(f *fake) {
		for flag, name := range []string{"train", "reload", "damaged"} {
			procedure := f.alloc(make([]byte, 64))
			f.put64(procedure+8, f.text(name))
			f.put(procedure+36, []byte{byte(flag)})
			context := f.alloc(make([]byte, 32))
			f.put64(context, procedure)
			f.node(pythonAt, context)
		}
		f.node(pythonAt, f.alloc(make([]byte, 32))) // being looked up
		f.node(pyDoAt, f.alloc(make([]byte, 32)))
	}
	for module, c := range map[string]struct {
		make func(*fake)
		want []string
	}{
		plperlModule: {perl, []string{`PL/Perl function "hash"`, "PL/Perl anonymous code block"}},
		pythonModule: {python, []string{
			`PL/Python function "train"`, `PL/Python procedure "reload"`, "PL/Python anonymous code block",
		}},
	} {
		each(t, func(t *testing.T, f *fake) {
			f.module = module
			c.make(f)
			check(t, f.lines(), c.want...)
			f.stripped = true
			check(t, f.lines(), c.want...)
			f.module = "other.so"
			check(t, f.lines())
		})
	}
}

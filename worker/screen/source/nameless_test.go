package source

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"pg_stat_backtrace/worker/moment"
)

// secret is in each text that a reader without names must not see.
const secret = "top-secret"

// fill sets each string of a value to the secret, each pointer and each slice to one element.
func fill(v reflect.Value, depth int) {
	if depth > 12 {
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(secret)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(7)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), depth+1)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), depth+1)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				fill(v.Field(i), depth+1)
			}
		}
	default:
	}
}

// full answers with the secret in each text.
type full struct{ Source }

func filled[T any]() *T {
	x := new(T)
	fill(reflect.ValueOf(x).Elem(), 0)
	return x
}

func (full) Info(context.Context) (*Info, error) { return filled[Info](), nil }

func (full) Findings(context.Context, Span) (*Findings, error) {
	f := filled[Findings]()
	for _, rule := range []string{RuleDeadlock, RuleBlocks, RuleDisk, RuleIdleInTx, RuleStatement, RuleSyncRep, RulePin, RuleMemory, "a new rule"} {
		x := f.Findings[0]
		x.Key, x.Rule, x.Severity = "key", rule, Critical
		f.Findings = append(f.Findings, x)
	}
	f.Findings = f.Findings[1:]
	return f, nil
}

func (full) Who(_ context.Context, _ Query, by By, _ int) (*Who, error) {
	w := filled[Who]()
	w.By, w.Rows[0].Key, w.Others.Key = by, "12", ""
	if by == ByType {
		w.Rows[0].Key = extensionType
		w.Rows = append(w.Rows, WhoRow{Key: clientBackend, Name: clientBackend, Active: 1})
	}
	return w, nil
}

// extensionType is the type of an extension's background worker.
const extensionType = "maintenance (dbname=" + secret + ")"

// plain sets the texts of a session that are from PostgreSQL itself.
func plain(s *SessionLine) {
	s.Class, s.Type, s.State, s.Wait = Lock, extensionType, stateActive, &moment.Wait{Type: Lock, Event: "tuple"}
	b := &s.Blockers[0]
	b.Lock, b.Mode, b.Object, b.Held = "relation", "m", "5/1", "m"
}

func (full) Sessions(context.Context, Filter, int) (*Sessions, error) {
	s := filled[Sessions]()
	plain(&s.Sessions[0])
	return s, nil
}

func (full) Blocking(context.Context) (*Blocking, error) {
	b := filled[Blocking]()
	plain(b.Nodes[0].Session)
	w := &b.Nodes[0].Waits[0]
	w.Lock, w.Mode, w.Object = "relation", "m", "5/1"
	return b, nil
}

func (full) Session(context.Context, int, Span) (*Session, error) {
	s := filled[Session]()
	plain(s.Now)
	s.Waits[0].Class, s.Waits[0].Event = Lock, "tuple"
	return s, nil
}

func TestNamelessHasNoNames(t *testing.T) {
	ctx, n := t.Context(), NewNameless(full{})
	span := Span{noon, noon.Add(time.Minute)}
	q := Query{Span: span}
	info, _ := n.Info(ctx)
	findings, _ := n.Findings(ctx, span)
	who, _ := n.Who(ctx, q, ByQuery, 10)
	types, _ := n.Who(ctx, q, ByType, 10)
	sessions, _ := n.Sessions(ctx, nil, 10)
	blocking, _ := n.Blocking(ctx)
	session, _ := n.Session(ctx, 7, span)
	for _, answer := range []any{info, findings, who, types, sessions, blocking, session} {
		text, err := json.Marshal(answer)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), secret) || len(text) < 50 {
			t.Errorf("%T: %s", answer, text)
		}
	}
	for _, c := range []Condition{
		{By: ByUser, Key: "1"}, {By: ByDatabase, Key: "1"}, {By: ByApplication, Key: "x"}, {By: ByPhrase, Key: "x"},
		{By: ByQuery, Key: "select secret from t"}, {By: ByType, Key: extensionType},
	} {
		q.Filter = Filter{c}
		if _, err := n.Load(ctx, q, 10); !errors.Is(err, ErrNeedsOperator) {
			t.Errorf("filter %v: %v", c, err)
		}
		if _, err := n.Sessions(ctx, q.Filter, 10); !errors.Is(err, ErrNeedsOperator) {
			t.Errorf("sessions with filter %v: %v", c, err)
		}
	}
	if len(types.Rows) != 1 || types.Rows[0].Name != clientBackend || types.Others == nil || types.Others.Count != 8 {
		t.Errorf("by type: %+v, others %+v", types.Rows, types.Others)
	}
	if got := sessions.Sessions[0].Type; got != "background worker" {
		t.Errorf("the type of an extension's worker is %q", got)
	}
	for _, kind := range []string{"", clientBackend, "parallel worker", "logical replication apply worker", "walsummarizer"} {
		if err := n.check(Filter{{By: ByType, Key: kind}}); err != nil || namelessType(kind) != kind {
			t.Errorf("type %q: %v", kind, err)
		}
	}
	if _, err := n.Who(ctx, Query{Span: span}, ByUser, 10); !errors.Is(err, ErrNeedsOperator) {
		t.Errorf("by user: %v", err)
	}
	if _, ok := Source(n).(Prober); ok {
		t.Error("a reader without names can read stacks")
	}
}

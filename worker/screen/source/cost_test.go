package source

import (
	"fmt"
	"testing"
	"time"
)

// BenchmarkSample measures the cost of a sample of 1,000 active sessions, without the read of the server's memory, and the
// cost of the answers for the pages Load and `Who` over five minutes with two samples a second.
func BenchmarkSample(b *testing.B) {
	var p past
	var r rules
	m := at(0)
	for pid := range 1000 {
		s := client(pid+1, stateActive, []string{"", "Lock:tuple", "IO:DataFileRead"}[pid%3])
		s.Application, s.Query = fmt.Sprintf("app %d", pid%20), fmt.Sprintf("select * from t where id = %d", pid)
		m.Sessions = append(m.Sessions, s)
	}
	sample := func(i int) {
		m.Time = noon.Add(time.Duration(i) * time.Second / 2)
		list := r.apply(&facts{m: m, processors: 2})
		p.addFindings(p.add(m, KindSampled, time.Second), list)
	}
	for i := range 600 {
		sample(i)
	}
	b.ResetTimer()
	for i := range b.N {
		sample(600 + i)
		q := Query{Span: Span{m.Time.Add(-5 * time.Minute), m.Time}}
		p.load(q, 400, time.Second, "")
		p.shares(q, ByQuery, 200)
		p.sessions(m, nil, 500)
	}
}

package node

import "testing"

// BenchmarkLook measures one look at the processes of this host.
func BenchmarkLook(b *testing.B) {
	for b.Loop() {
		found, _, err := postmasters(Config{Proc: "/proc"})
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(len(found)), "postmasters")
	}
}

package locks

import (
	"fmt"
	"strings"
	"testing"
)

// TestBehind has standbys with and without a confirmation. Only those without one block a commit.
func TestBehind(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		senders       []sender
		method, count int
		want          string
	}{
		"priority":                       {[]sender{{11, 2, 1}, {12, 1, 0}, {13, 3, 1}}, methodPriority, 2, "11 hard"},
		"equal priorities":               {[]sender{{11, 1, 1}, {12, 1, 1}}, methodPriority, 1, "11 hard"},
		"priority, two behind":           {[]sender{{11, 2, 1}, {12, 1, 1}, {13, 3, 1}}, methodPriority, 2, "12 hard, 11 hard"},
		"quorum":                         {[]sender{{11, 1, 1}, {12, 1, 0}, {13, 1, 1}}, methodQuorum, 2, "11 soft, 13 soft"},
		"as many standbys as required":   {[]sender{{11, 1, 0}, {12, 1, 1}}, methodQuorum, 2, "12 soft"},
		"fewer standbys than required":   {[]sender{{11, 1, 1}}, methodQuorum, 2, "1 of 2 required synchronous standbys are connected"},
		"no standby":                     {nil, methodPriority, 1, "0 of 1 required synchronous standbys are connected"},
		"confirmed":                      {[]sender{{11, 1, 0}, {12, 2, 1}}, methodPriority, 1, "the standbys have confirmed the commit"},
		"confirmed by all of the quorum": {[]sender{{11, 1, 0}, {12, 1, 0}}, methodQuorum, 2, "the standbys have confirmed the commit"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			blockers, got := behind(test.senders, test.method, test.count)
			if got == "" {
				var list []string
				for _, b := range blockers {
					list = append(list, fmt.Sprintf("%d %s", b.PID, map[bool]string{true: "hard", false: "soft"}[b.Hard]))
					if b.Leader != b.PID || b.Proc != -1 {
						t.Errorf("%+v", b)
					}
				}
				got = strings.Join(list, ", ")
			}
			if got != test.want {
				t.Errorf("%q, want %q", got, test.want)
			}
		})
	}
}

package main

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"math"
)

// Sizes of the chart, in pixels.
const (
	chartWidth  = 860
	chartLabels = 190 // left of the bars
	chartValues = 150 // right of them
	barHeight   = 20
	barStep     = 26
)

// chart draws the pauses as bars on a logarithmic scale: the median full, up to the 99th percentile pale.
func (r *report) chart() []byte {
	var b bytes.Buffer
	lowest, highest := math.Inf(1), 0.0
	bars := 0
	for _, one := range r.Results {
		if one.Pause.P50 > 0 {
			lowest, highest = min(lowest, one.Pause.P50), max(highest, one.Pause.P99)
			bars++
		}
	}
	low := math.Floor(math.Log10(lowest))
	high := math.Ceil(math.Log10(max(highest, 10*lowest)))
	x := func(us float64) float64 {
		return chartLabels + (math.Log10(us)-low)/(high-low)*(chartWidth-chartLabels-chartValues)
	}
	body, height := r.bars(x)
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" `+
		`font-family="sans-serif" font-size="13">`+"\n", chartWidth, height+30, chartWidth, height+30)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#ffffff"/>`+"\n", chartWidth, height+30)
	for exponent := low; exponent <= high && bars > 0; exponent++ {
		us := math.Pow(10, exponent)
		fmt.Fprintf(&b, `<line x1="%.1f" y1="0" x2="%.1f" y2="%d" stroke="#dddddd"/>`+"\n", x(us), x(us), height)
		fmt.Fprintf(&b, `<text x="%.1f" y="%d" text-anchor="middle" fill="#555555">%s</text>`+"\n", x(us), height+18,
			micros(us))
	}
	b.Write(body)
	b.WriteString("</svg>\n")
	return b.Bytes()
}

// bars returns the bars of all targets, one below the other, and the position of their end.
func (r *report) bars(x func(float64) float64) (body []byte, y int) {
	var b bytes.Buffer
	target := ""
	for _, one := range r.Results {
		if one.Pause.P50 == 0 {
			continue
		}
		if one.Target != target {
			target = one.Target
			y += 24
			fmt.Fprintf(&b, `<text x="8" y="%d" font-weight="bold">%s</text>`+"\n", y, escape(target))
			y += 8
		}
		color := "#8a8f98"
		if one.Tool == ours {
			color = "#2a6fdb"
		}
		median, most := x(one.Pause.P50), x(one.Pause.P99)
		fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="end">%s</text>`+"\n", chartLabels-8, y+15, escape(one.Tool))
		fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s" opacity="0.35"/>`+"\n", chartLabels, y,
			max(most, median)-chartLabels, barHeight, color)
		fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/>`+"\n", chartLabels, y,
			median-chartLabels, barHeight, color)
		fmt.Fprintf(&b, `<text x="%.1f" y="%d">%s, 99 %%: %s</text>`+"\n", max(most, median)+6, y+15,
			micros(one.Pause.P50), micros(one.Pause.P99))
		y += barStep
	}
	return b.Bytes(), y
}

func escape(text string) string {
	var b bytes.Buffer
	_ = xml.EscapeText(&b, []byte(text)) // into memory
	return b.String()
}

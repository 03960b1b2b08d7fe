// Package stat holds the statistics behind a choice. They are robust if one bad
// figure among few must not decide. Each names its source.
package stat

import (
	"math"
	"slices"
)

// Mean is the arithmetic mean; NaN of nothing.
func Mean(xs []float64) float64 {
	return sum(xs) / float64(len(xs))
}

// Median is the middle value, or the mean of the middle two; NaN of nothing.
func Median(xs []float64) float64 {
	return Quantile(xs, 0.5)
}

// Quantile is the value below which the share p of xs lies, interpolated
// linearly between neighbours (type 7 of Hyndman & Fan, "Sample quantiles in
// statistical packages", 1996); NaN of nothing. p is clamped to 0 … 1.
func Quantile(xs []float64, p float64) float64 {
	if len(xs) == 0 {
		return math.NaN()
	}
	sorted := slices.Clone(xs)
	slices.Sort(sorted)
	at := min(max(p, 0), 1) * float64(len(sorted)-1)
	i := int(at)
	if i+1 == len(sorted) {
		return sorted[i]
	}
	return sorted[i] + (at-float64(i))*(sorted[i+1]-sorted[i])
}

// StudentT is the t that a variable of Student's distribution with df degrees
// of freedom, not necessarily whole, stays within at the given confidence:
// ±2.776 at 0.95 with 4. It follows Hill, "Algorithm 396: Student's
// t-quantiles", Communications of the ACM 13 (1970), 619–620. df below 1 gives +Inf.
func StudentT(confidence, df float64) float64 {
	p := 1 - confidence // of both tails
	switch {
	case df < 1:
		return math.Inf(1)
	case df == 1:
		return 1 / math.Tan(p*math.Pi/2)
	case df == 2:
		return math.Sqrt(2/(p*(2-p)) - 2)
	}
	a := 1 / (df - 0.5)
	b := 48 / (a * a)
	c := ((20700*a/b-98)*a-16)*a + 96.36
	d := ((94.5/(b+c)-3)/b + 1) * math.Sqrt(a*math.Pi/2) * df
	y := math.Pow(d*p, 2/df)
	if y <= 0.05+a {
		y = ((1/(((df+6)/(df*y)-0.089*d-0.822)*(df+2)*3)+0.5/(df+4))*y-1)*(df+1)/(df+2) + 1/y
		return math.Sqrt(df * y)
	}
	x := -math.Sqrt2 * math.Erfinv(confidence)
	y = x * x
	if df < 5 {
		c += 0.3 * (df - 4.5) * (x + 0.6)
	}
	c += (((0.05*d*x-5)*x-7)*x-2)*x + b
	y = (((((0.4*y+6.3)*y+36)*y+94.5)/c-y-3)/b + 1) * x
	return math.Sqrt(df * math.Expm1(a*y*y))
}

func sum(xs []float64) (sum float64) {
	for _, x := range xs {
		sum += x
	}
	return sum
}

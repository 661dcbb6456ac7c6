//go:build !race

package bgp

const underRace = false

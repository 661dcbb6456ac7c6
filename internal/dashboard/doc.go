// Package dashboard is a live page of what switches' agents say: links, groups and their
// trees, how far receivers are behind, how answers are merged, what is suspected, and what
// has happened.
//
// state.go, views.go and lag.go are the core: state.go keeps what agents have answered, and
// when; views.go makes of it what a page gets. collect.go asks the agents; server.go serves the page, which is in
// page/. Nothing is remembered without a bound, and nothing is changed anywhere.
//
// Each part of the page says how old it is. An agent that is silent for longer than
// Options.Stale makes its part gray, whatever it said last.
package dashboard

// Package dashboard serves a live page of what switches' agents report: links, groups and their
// trees, the lag of receivers, merging verdicts, suspicions and events.
//
// state.go, views.go and lag.go are the core: state.go keeps the agents' answers and their times;
// views.go computes the views for a page. collect.go polls the agents; server.go serves the page,
// which is in page/. All history is bounded, and the package only reads.
//
// Each part of the page shows its age. The part of an agent that is silent for longer than
// Options.Stale is gray, whatever it reported last.
package dashboard

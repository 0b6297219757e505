// Package images holds the recipes of the guest kernel and the images, so that
// a released binary can build them where there is no source tree. It owns
// nothing but the embedding: internal/artifact runs the recipes, and each
// folder with a build.sh says itself what it makes.
package images

import "embed"

// Recipes holds one folder per recipe, each with a build.sh OUTDIR, and the
// scripts that they share. File modes are not kept.
//
//go:embed *.sh all:*/*
var Recipes embed.FS

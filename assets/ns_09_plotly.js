// Plotly, for the figures that need it, fetched when the first of them opens.
(function (ns) {
  "use strict";

  const SOURCE = "/_dash-component-suites/plotly/package_data/plotly.min.js";
  let loading = null;

  // Resolves to Plotly.
  ns.plotly = function () {
    loading ||= new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = SOURCE;
      script.onload = () => resolve(window.Plotly);
      script.onerror = () => { loading = null; reject(new Error("the drawing library could not be fetched")); };
      document.head.append(script);
    });
    return loading;
  };
})(window.nanscope);
